"""The screens, and what connects widgets with engine and history."""
