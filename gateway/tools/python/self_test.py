"""Choose the engine that a gateway runs Python in: the first that passes its self-test.

The self-test opens a container, checks that it works at all, and runs every attack in it. An engine
that allows one attack is refused, whatever the settings say: nothing else shows that a wall is
missing here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from gateway.tools.python.attacks import ATTACKS, DENIED, script
from gateway.tools.python.engine import ContainerLimits, EngineBroken, Ran

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.tools.python.engine import Container, ContainerCapabilities, ContainerEngine

ATTACK_TIMEOUT_S: Final = 30.0
_WORKS: Final = "print(6 * 7)"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The engine that runs Python, with what it can do; and why others do not."""

    engine: ContainerEngine | None
    capabilities: ContainerCapabilities | None
    refused: tuple[str, ...] = ()

    @override
    def __str__(self) -> str:
        # A line for the log.
        why = f" ({'; '.join(self.refused)})" if self.refused else ""
        if self.engine is None or self.capabilities is None:
            return f"python is off: no engine is safe here{why}"
        packages = ", ".join(self.capabilities.packages) or "no packages"
        return (
            f"python runs in the engine {self.engine.name}: {self.capabilities.language}, "
            f"{packages}{why}"
        )


async def choose(engines: Sequence[ContainerEngine]) -> Chosen:
    """Return the first engine that passes; all others are closed."""
    refused: list[str] = []
    chosen: ContainerEngine | None = None
    capabilities: ContainerCapabilities | None = None
    for engine in engines:
        if chosen is not None:
            await engine.close()
            continue
        try:
            capabilities = await engine.describe()
            allowed = await allowed_attacks(engine, is_whole=capabilities.is_whole)
        except EngineBroken as error:
            refused.append(f"{engine.name}: {error}")
            await engine.close()
            continue
        if allowed:
            refused.append(f"{engine.name}: code may {', '.join(allowed)}")
            await engine.close()
        else:
            chosen = engine
    return Chosen(chosen, capabilities if chosen else None, tuple(refused))


async def allowed_attacks(engine: ContainerEngine, *, is_whole: bool = True) -> list[str]:
    """Return the attacks that succeed in a container of the engine. Raises `EngineBroken`.

    An attack that kills its container counts as denied. Without `is_whole` any failure does,
    because the interpreter may lack what the attack needs.
    """
    container = await engine.open(ContainerLimits())
    try:
        works = await container.run(_WORKS, timeout_s=ATTACK_TIMEOUT_S)
        if works.output.strip() != "42":
            raise EngineBroken("it does not run a simple program")
        allowed: list[str] = []
        for attack in ATTACKS:
            ran, container = await _tried(engine, container, attack)
            is_denied = ran.output.strip() == DENIED or ran.status == "killed"
            if not is_denied and (is_whole or ran.status != "error"):
                allowed.append(attack)
        return allowed
    finally:
        await container.close()


async def _tried(
    engine: ContainerEngine, container: Container, attack: str
) -> tuple[Ran, Container]:
    # The container is the one for the next attack.
    try:
        ran = await container.run(script(attack), timeout_s=ATTACK_TIMEOUT_S)
    except EngineBroken:  # its own bounds, or the kernel's, have ended it
        ran = Ran(status="killed")
    if ran.status == "killed":
        await container.close()
        container = await engine.open(ContainerLimits())
    return ran, container
