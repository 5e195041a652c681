"""Limits and budgets as administrators of a tenant set them: of its projects, and of all of it.

What the operator grants a tenant is not theirs to change; nothing of a project may be above it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.limits.terms import ALL_MODELS
from gateway.services.admin.projects import required_project
from gateway.services.limits import LimitOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from gateway.governance.audit import Author
    from gateway.limits.terms import Limit, Mode, What
    from gateway.services.admin.transactions import Transactions
    from gateway.services.limits import Limits
    from gateway.store.limits.rules import SpendAlert
    from gateway.tenancy import TenantId


class ProjectLimits:
    """Raises `ResourceNotFound` for a project that the tenant does not have. `author` is who
    changes something, for the audit log.
    """

    def __init__(
        self,
        transactions: Transactions,
        limits: Limits,
        *,
        models: Callable[[], Sequence[str]],
        forget: Callable[[], None],
    ) -> None:
        """`models` are those that are served; `forget` has keys looked up again in this process."""
        self.limits = limits
        self._transactions = transactions
        self._models = models
        self._forget = forget

    def organization(self, tenant_id: TenantId) -> LimitOwner:
        """What administrators set for all of the tenant."""
        return LimitOwner(tenant_id, "organization", tenant_id)

    async def of_project(
        self, tenant_id: TenantId, project_id: str, *, is_active: bool = False
    ) -> LimitOwner:
        """That of a project; with `is_active` raises `InvalidRequest` for an archived one, too."""
        async with self._transactions.reading(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id, is_active=is_active)
        return LimitOwner(tenant_id, "project", project.id)

    async def by_model(self, owner: LimitOwner) -> dict[str, list[Limit]]:
        """The limits of a project by model: of all that are served, and those that have some."""
        found: dict[str, list[Limit]] = {model: [] for model in sorted(self._models())}
        for limit in await self.limits.limits(owner.tenant_id):
            if (limit.scope, limit.scope_id) == (owner.scope, owner.scope_id):
                found.setdefault(limit.model, []).append(limit)
        return found

    async def set(
        self,
        owner: LimitOwner,
        values: Mapping[tuple[What, int], int | None],
        *,
        author: Author,
        model: str = ALL_MODELS,
        mode: Mode | None = None,
    ) -> list[Limit]:
        """Set limits of one model, or of all, as `Limits.set_limits` does."""
        changed = await self.limits.set_limits(owner, values, model=model, mode=mode, author=author)
        self._forget()
        return changed

    async def set_budget(self, owner: LimitOwner, cap: int, author: Author) -> None:
        """Set the spend limit of a month, in nano-dollars."""
        await self.limits.set_budget(owner, cap, author=author)
        self._forget()

    async def remove_budget(self, owner: LimitOwner, author: Author) -> bool:
        """No budget of money a month. Whether there was one."""
        is_gone = await self.limits.remove_budget(owner, "usd", "month", author)
        self._forget()
        return is_gone

    async def add_alert(
        self, owner: LimitOwner, threshold: int, channel: dict[str, object], author: Author
    ) -> SpendAlert:
        """Have somebody told when so many nano-dollars are spent in a month."""
        made = await self.limits.add_alert(owner, threshold, channel, author=author)
        self._forget()
        return made

    async def alerts(self, owner: LimitOwner) -> list[SpendAlert]:
        """Those that administrators made, the oldest first: what the operator set beside a budget
        (`SpendAlert.percent`) is not theirs, and need not be of dollars or of a month.
        """
        return [one for one in await self.limits.alerts(owner) if one.percent is None]

    async def alert(self, owner: LimitOwner, alert_id: UUID) -> SpendAlert | None:
        """The one of that id among them; None where the owner has none."""
        found = await self.alerts(owner)
        return next((one for one in found if one.id == alert_id), None)

    async def change_alert(
        self, owner: LimitOwner, alert: SpendAlert, author: Author
    ) -> SpendAlert | None:
        """Another threshold or channel. None: it is gone."""
        changed = await self.limits.change_alert(owner, alert, author)
        self._forget()
        return changed

    async def remove_alert(self, owner: LimitOwner, alert_id: UUID, author: Author) -> bool:
        """Delete a spend alert. False: there was none of that id."""
        theirs = {one.id for one in await self.alerts(owner)}
        is_gone = alert_id in theirs and await self.limits.remove_alert(owner, alert_id, author)
        self._forget()
        return is_gone
