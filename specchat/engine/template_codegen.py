"""How chat templates are compiled: with ticks, size charges and trusted literals.

The code Jinja generates calls back into its environment (`template_sandbox.Sandbox`) at
every place where time or memory could go, and takes each string the author wrote from
`environment.literals`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser

from specchat.engine.template_text import literal

if TYPE_CHECKING:
    from specchat.engine.template_sandbox import Sandbox


class Generator(CodeGenerator):
    """Emits code that ticks, and whose string constants are the environment's literals."""

    environment: Sandbox

    def _literal(self, text: str) -> str:
        self.environment.literals.append(literal(text))
        return f"environment.literals[{len(self.environment.literals) - 1}]"

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        if isinstance(node.value, str):
            self.write(self._literal(node.value))
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        self.write(self._literal(node.data))

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return self._literal("".join(group))

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if isinstance(node, nodes.TemplateData):
            return node.data
        raise nodes.Impossible  # evaluating at compile time would escape the limits

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write("environment.text(")

    def visit_ExprStmt(self, node: nodes.ExprStmt, frame: Frame) -> None:
        self.writeline("environment.tick()", node)  # only insert_ticks makes these

    def _wrapped(
        self, before: str, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame
    ) -> None:
        self.write(before)
        visit(node, frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat_values((")
        for arg in node.nodes:
            self.visit(arg, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        self._wrapped("(environment.tick() or ", super().visit_Compare, node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        self._wrapped("environment.charge(", super().visit_Getitem, node, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._wrapped("environment.charge(", super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._wrapped("environment.charge(", super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._wrapped("environment.charge(", super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks assistant text for training; a no-op."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def insert_ticks(tree: nodes.Template) -> nodes.Template:
    """Begin every body that can run again with a tick: even one without output ends."""
    node: Any
    for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
        node.body.insert(0, nodes.ExprStmt(nodes.Const(None), lineno=node.lineno))
    return tree
