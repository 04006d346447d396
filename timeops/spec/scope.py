"""How much of the past is computed again: all tables, some windows, or nothing."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Scope:
    """The tables that a rebuild computes again, or whose past a change asks for.

    Attributes:
        windows: The windows, by name, where theirs are enough.
        of_all: All derived tables.
    """

    windows: tuple[str, ...] = ()
    of_all: bool = False

    ALL: ClassVar["Scope"]
    NOTHING: ClassVar["Scope"]

    @classmethod
    def together(cls, scopes: Iterable["Scope"]) -> "Scope":
        """Return all that is in some of the scopes, windows in the order in which they first come."""
        all_scopes = [*scopes]
        names = dict.fromkeys(name for scope in all_scopes for name in scope.windows)
        return cls.ALL if any(scope.of_all for scope in all_scopes) else cls(tuple(names))

    def __bool__(self) -> bool:
        """Return whether there is anything to compute."""
        return self.of_all or bool(self.windows)

    def __str__(self) -> str:
        """Return the scope in words."""
        return "all tables" if self.of_all else " and ".join(self.windows) or "nothing"

    def covers(self, other: "Scope") -> bool:
        """Return whether everything in another scope is in this one."""
        return self.of_all or (not other.of_all and {*other.windows} <= {*self.windows})


Scope.ALL = Scope(of_all=True)
Scope.NOTHING = Scope()
