"""The OpenAPI description (to come)."""


def document() -> dict[str, object]:
    return {}


def page() -> str:
    return ""
