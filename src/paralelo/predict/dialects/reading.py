"""What every dialect is read into: options with what they mean, settings with common names, a layout, findings."""

from dataclasses import dataclass, field

from paralelo.predict.audit.finding import Finding
from paralelo.predict.layout import Layout
from paralelo.words import Message


@dataclass(frozen=True)
class Option:
    """One option as the file writes it, its value, and a sentence about it."""

    name: str
    value: object
    message: Message


@dataclass
class Reading:
    """A configuration of another tool: `settings` has the names of the audit (tp, microbatch_size, zero, …)."""

    dialect: str
    options: list[Option] = field(default_factory=list)
    settings: dict = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    layout: Layout = field(default_factory=Layout)

    @property
    def valid(self) -> bool:
        return all(f.verdict != "breaks" for f in self.findings)

    def note(self, option: str, id: str, verdict: str = "note", **fields) -> None:
        """Add a finding about an option: a contradiction `breaks`, the rest is a note."""
        self.findings.append(Finding(option, fields.get("size", 0), fields.get("degree", 0), verdict,
                                     Message(f"read.finding.{id}", fields | {"option": option})))
