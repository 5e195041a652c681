"""Policy of a tenant, as an operator may decide it.

Settings, `tenants set`, the table and checks are made from `PolicyValue`. A new value is an entry
here, a field of `TenantPolicy`, a migration that adds its column, and the code that heeds it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from typing_extensions import override

from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

OnDisconnect = Literal["cancel", "continue"]
ReasoningSummary = Literal["analysis", "off"]
ServiceTierMax = Literal["default", "priority"]
TierDefault = Literal["standard", "fast", "scale"]
"""Tier of requests that name none, in OpenAI's words."""
OptionalTier = Literal["flex", "fast", "ultrafast"]
HostedTool = Literal["web_search", "code_interpreter", "mcp"]
"""Tools that a tenant or a project may be refused."""
ResponseMessages = Literal["refused", "allowed"]
ToolAccess = Literal["refused", "allowed"]
ModelsMode = Literal["allow_list", "deny_list"]
ContainerMemory = Literal["1g", "4g", "16g", "64g"]
McpServersAllowed = Literal["registry", "listed", "any"]
"""Registered ones; these and those on listed hosts; or any."""
McpApprovals = Literal["request", "always"]
"""When the user approves calls: as the request says, or always."""

OperatorContentAccess = Literal["never", "consent", "always"]
"""Never, while the tenant consents, or whenever they have a reason."""

OwnPolicy: TypeAlias = "Mapping[str, str | int]"
PolicyChanges: TypeAlias = "Mapping[str, str | int | None]"
"""None removes a value, omitted ones stay."""

ALL_MODELS: Final = "*"
MODELS_FORM: Final = "NAME,NAME…"
_TAG_NAME: Final = r"[A-Za-z0-9_.-]{1,64}"
_MODEL_NAMES: Final = r"[^,*\s\x00-\x1f\x7f]{1,256}\*?|\*"
HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S
_YEAR_S: Final = 365 * DAY_S
_INTEGER_MAX: Final = 2**31 - 1
DOMAINS_CHARS_MAX: Final = 8192
_DOMAIN: Final = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63}){0,30}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyValue:
    """Value of a policy: one of `words`, a text that matches `pattern`, a number from `least` to
    `most`, or, with `is_domains`, lower-case domains with one space between two.

    `setting` counts where a tenant has no value; without one the field's default does. `purpose` is
    its text in the reference. `option` is that of `tenants set`; one unit of it is `option_unit`
    units of the value.
    """

    name: str = field(kw_only=False)
    option_help: str = ""
    option: str = ""
    option_unit: int = 1
    setting: str | None = None
    purpose: str = ""
    words: tuple[str, ...] = ()
    pattern: str | None = None
    least: int = 0
    most: int = 0
    is_domains: bool = False

    @property
    def default(self) -> str | int:
        default: str | int = getattr(DEFAULT_POLICY, self.name)
        return default

    @property
    def description(self) -> str:
        return f"{self.purpose} A tenant may have its own: tenants set."

    @property
    def option_name(self) -> str:
        return self.option or f"--{self.name.replace('_', '-')}"

    @property
    def option_text(self) -> str:
        # Help of the option: without words of its own those of the setting, up to its reason.
        return self.option_help or f"{self.purpose.partition('. ')[0]}."

    @property
    def option_form(self) -> str:
        """Return the placeholder, unused for `words`."""
        if self.is_domains:
            return "DOMAINS"
        return MODELS_FORM if self.pattern else "N"

    @property
    def column_type(self) -> Literal["text", "integer"]:
        # The type of its column in `tenants`, where null means that the tenant has no own value.
        return "text" if self.words or self.is_domains or self.pattern else "integer"

    @property
    def column_check(self) -> str | None:
        """Return the condition of the column's check."""
        if self.words:
            return f"{self.name} IN ({', '.join(map(repr, self.words))})"
        if self.is_domains or self.pattern:
            return None
        return f"{self.name} >= 0" if self.least == 0 else None

    def check(self, value: str | int) -> None:
        # Raises `InvalidRequest` that names the allowed values.
        if self.words:
            if value not in self.words:
                among = ", ".join(self.words)
                raise InvalidRequest(f"{value!r} is neither of: {among}.", param=self.name)
        elif self.is_domains:
            if not isinstance(value, str) or not are_domains(value):
                raise InvalidRequest(
                    f"{self.name} must be domains, such as 'example.com docs.example.org', of "
                    f"{DOMAINS_CHARS_MAX} characters together at most.",
                    param=self.name,
                )
        elif self.pattern:
            if not (isinstance(value, str) and re.fullmatch(self.pattern, value)):
                raise InvalidRequest(f"{value!r} is not {self.option_form}.", param=self.name)
        elif not (isinstance(value, int) and self.least <= value <= self.most):
            raise InvalidRequest(
                f"{self.name} must be a number from {self.least} to {self.most}.", param=self.name
            )


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """Policy in force for one tenant. `share_weight` is in hundredths."""

    on_disconnect: OnDisconnect = "cancel"
    log_retention_s: int = DAY_S
    response_retention_s: int = 30 * DAY_S
    background_running_max: int = 64
    background_queued_max: int = 1_000
    reasoning_summary: ReasoningSummary = "analysis"
    reasoning_budget_tokens: int = 0
    service_tier_max: ServiceTierMax = "default"
    response_messages: ResponseMessages = "refused"
    web_search: ToolAccess = "allowed"
    code_interpreter: ToolAccess = "allowed"
    mcp: ToolAccess = "allowed"
    mcp_servers: McpServersAllowed = "any"
    mcp_approvals: McpApprovals = "request"
    tool_calls_max: int = 64
    tool_time_max_s: int = 900
    tool_result_ids_max: int = 48_000
    tool_result_bytes_max: int = 64 * 1024 * 1024
    egress: ToolAccess = "allowed"
    egress_domains: str = ""
    egress_denied_domains: str = ""
    containers_max: int = 1_000
    container_memory_max: ContainerMemory = "64g"
    models: str = ALL_MODELS
    usage_tags: str = ""
    projects_share_responses: ToolAccess = "refused"
    share_weight: int = 100
    usage_by_end_user: ToolAccess = "refused"
    operator_content_access: OperatorContentAccess = "never"

    @property
    def may_wait(self) -> bool:
        # Requests for the tier `flex` get it; projects may narrow that.
        return True

    @property
    def tier_default(self) -> TierDefault:
        # Projects may narrow that.
        return "standard"

    @property
    def declared_tags(self) -> tuple[str, ...]:
        # The metadata keys whose values are on usage lines.
        return tuple(self.usage_tags.split(",")) if self.usage_tags else ()

    @classmethod
    def of_settings(cls, settings: object) -> TenantPolicy:
        paths = {one.name: one.setting for one in POLICY_VALUES.values() if one.setting}
        return cls(**{name: attrgetter(path)(settings) for name, path in paths.items()})

    def shown(self) -> dict[str, str | int]:
        return {name: getattr(self, name) for name in POLICY_VALUES}

    def with_own(self, own: OwnPolicy) -> TenantPolicy:
        return replace(self, **dict[str, Any](own))

    def may_use(self, names: Iterable[str]) -> bool:
        # `names`: all names of one model.
        return self.models == ALL_MODELS or _are_listed(names, self.models.split(","))


def _are_listed(names: Iterable[str], listed: Sequence[str]) -> bool:
    # A listed name that ends with `*` stands for all that begin with the rest.
    begins = tuple(one[:-1] for one in listed if one.endswith("*"))
    return any(name in listed or name.startswith(begins) for name in names)


@dataclass(frozen=True, slots=True)
class ModelPermissions:
    """Models of a project or a key. A name that ends in `*` is a prefix."""

    mode: ModelsMode
    models: tuple[str, ...]

    def allow(self, names: Iterable[str]) -> bool:
        # `names`: all names of one model.
        return _are_listed(names, self.models) == (self.mode == "allow_list")


@dataclass(frozen=True, slots=True)
class ProjectControls:
    """Restrictions of a project; `tiers` are those besides the usual one (None: all)."""

    tools_off: frozenset[HostedTool] = frozenset()
    tiers: tuple[OptionalTier, ...] | None = None
    tier_default: TierDefault = "standard"

    def narrowed(self, policy: TenantPolicy) -> dict[str, Any]:
        """Return the values of `policy` that differ."""
        own: dict[str, Any] = dict.fromkeys(self.tools_off, "refused")
        if self.tiers is not None and not {"fast", "ultrafast"} & set(self.tiers):
            own["service_tier_max"] = "default"
        return {name: value for name, value in own.items() if getattr(policy, name) != value}


ALL_CONTROLS: Final = ProjectControls()


@dataclass(frozen=True, slots=True)
class NarrowedPolicy(TenantPolicy):
    """Policy for the requests of one key."""

    permissions: tuple[ModelPermissions, ...] = ()
    controls: ProjectControls = ALL_CONTROLS

    @property
    @override
    def may_wait(self) -> bool:
        return self.controls.tiers is None or "flex" in self.controls.tiers

    @property
    @override
    def tier_default(self) -> TierDefault:
        return self.controls.tier_default

    @override
    def may_use(self, names: Iterable[str]) -> bool:
        # Tenant, project and key must all allow the model.
        names = tuple(names)
        return TenantPolicy.may_use(self, names) and all(
            one.allow(names) for one in self.permissions
        )

    @classmethod
    def of(
        cls,
        policy: TenantPolicy,
        *permissions: ModelPermissions | None,
        controls: ProjectControls = ALL_CONTROLS,
    ) -> TenantPolicy:
        """Return `policy` itself if nothing narrows it."""
        restrictions = tuple(one for one in permissions if one is not None)
        if not restrictions and controls == ALL_CONTROLS:
            return policy
        own = {field.name: getattr(policy, field.name) for field in fields(TenantPolicy)}
        own |= controls.narrowed(policy)
        return cls(**own, permissions=restrictions, controls=controls)


DEFAULT_POLICY: Final = TenantPolicy()
_VALUES: Final = (
    PolicyValue(
        "on_disconnect",
        setting="background.on_disconnect",
        purpose="What becomes of a stored response whose client hangs up: cancel or continue. "
        "Set continue where clients resume streams; OpenAI cancels.",
        words=get_args(OnDisconnect),
    ),
    PolicyValue(
        "log_retention_s",
        setting="retention.log_s",
        purpose="Seconds after its end that a response can be streamed again. Lower it to save "
        "disk.",
        option="--log-retention-h",
        option_unit=HOUR_S,
        option_help="Hours after its end that a response can be streamed again.",
        least=1,
        most=_YEAR_S,
    ),
    PolicyValue(
        "response_retention_s",
        setting="retention.response_s",
        purpose="Seconds after its creation that a stored response is kept. Set what the law "
        "or a contract says; one that others continue from is kept longer.",
        option="--response-retention-d",
        option_unit=DAY_S,
        option_help="Days that a stored response is kept.",
        least=1,
        most=10 * _YEAR_S,
    ),
    PolicyValue(
        "background_running_max",
        setting="background.tenant_running_max",
        purpose="Background responses of one tenant generated at once by all replicas. Size it "
        "by the backends and the number of tenants; the rest waits in order.",
        least=1,
        most=100_000,
    ),
    PolicyValue(
        "background_queued_max",
        setting="background.tenant_queued_max",
        purpose="Background responses of one tenant that wait; one more is answered 429. Raise "
        "it for tenants that hand in much at once.",
        least=1,
        most=10_000_000,
    ),
    PolicyValue(
        "reasoning_summary",
        setting="reasoning.summary",
        purpose="What a summary that a client asks for is made from: the analysis, or nothing. "
        "Set off where users must not read raw reasoning.",
        words=get_args(ReasoningSummary),
    ),
    PolicyValue(
        "reasoning_budget_tokens",
        setting="generation.reasoning_budget_tokens",
        purpose="Tokens of reasoning of requests that name no bound; 0: any number. Set it to "
        "bound cost and time: then the answer is opened.",
        most=1_000_000,
    ),
    PolicyValue(
        "service_tier_max",
        option_help="The best tier of its requests; without a policy it is `default`, too.",
        words=get_args(ServiceTierMax),
    ),
    PolicyValue(
        "response_messages",
        setting="debugging.response_messages",
        purpose="Whether requests may ask for their Harmony messages and token ids. Set "
        "allowed for who debugs or trains models (enable_response_messages): they show raw "
        "reasoning.",
        words=get_args(ResponseMessages),
    ),
    PolicyValue(
        "web_search",
        setting="tools.web.tenants",
        purpose="Whether requests may search the web where that is enabled. Set refused where "
        "only some tenants may: it is dropped from other requests.",
        words=get_args(ToolAccess),
    ),
    PolicyValue(
        "code_interpreter",
        setting="tools.python.tenants",
        purpose="Whether requests may run Python where that is enabled. Set refused where only "
        "some tenants may: it is dropped from other requests.",
        words=get_args(ToolAccess),
    ),
    PolicyValue(
        "mcp",
        setting="tools.mcp.tenants",
        purpose="Whether requests may call tools of MCP servers where that is enabled. Set "
        "refused where only some tenants may: they are dropped from other requests.",
        words=get_args(ToolAccess),
    ),
    PolicyValue(
        "mcp_servers",
        setting="tools.mcp.servers",
        purpose="Which MCP servers requests may use: registry, listed or any. Narrow it where "
        "users must not choose servers: listed adds listed hosts to those of the registry, any the "
        "public internet.",
        words=get_args(McpServersAllowed),
    ),
    PolicyValue(
        "mcp_approvals",
        setting="tools.mcp.approvals",
        purpose="When the user is asked before a call of an MCP server: request or always. Set "
        "always where requests must not waive it.",
        words=get_args(McpApprovals),
    ),
    PolicyValue(
        "tool_calls_max",
        setting="tools.calls_max",
        purpose="Calls of hosted tools in one response. Lower it to bound cost; a request may "
        "want fewer (max_tool_calls).",
        least=1,
        most=10_000,
    ),
    PolicyValue(
        "tool_time_max_s",
        setting="tools.time_max_s",
        purpose="Seconds that all calls of hosted tools of one response may take together. "
        "Raise it for agents that work long.",
        least=1,
        most=DAY_S,
    ),
    PolicyValue(
        "tool_result_ids_max",
        setting="tools.result_ids_max",
        purpose="Token ids of all results of hosted tools of one response. Size it by the "
        "model's context.",
        least=1,
        most=100_000_000,
    ),
    PolicyValue(
        "tool_result_bytes_max",
        setting="tools.result_bytes_max",
        purpose="Bytes that all calls of hosted tools of one response may return. Raise it for "
        "tools with long results, which are cut for the model; the call that passes it is the "
        "last.",
        least=1,
        most=_INTEGER_MAX,
    ),
    PolicyValue(
        "egress",
        setting="tools.egress",
        purpose="Whether tools may connect to what requests and models name. Set refused where "
        "no data may leave: pages of the web, search engines and MCP servers that are not "
        "registered cannot be reached, and the browser has the local index.",
        words=get_args(ToolAccess),
    ),
    PolicyValue(
        "egress_domains",
        setting="tools.egress_domains",
        purpose="The only domains that tools may reach, separated by spaces; empty: all. Set "
        "it where few sites are trusted: it is for pages and for MCP servers that requests name, "
        "with the domains below.",
        is_domains=True,
    ),
    PolicyValue(
        "egress_denied_domains",
        setting="tools.egress_denied_domains",
        purpose="Domains that tools may not reach, separated by spaces. Set those that must "
        "not be read, with those below them.",
        is_domains=True,
    ),
    PolicyValue(
        "containers_max",
        setting="tools.python.tenant_containers_max",
        purpose="Containers of a tenant that have not expired. Size it by the machine: one "
        "more that is asked for is answered 429, and a response that needs one of its own is told "
        "that there is none.",
        least=1,
        most=1_000_000,
    ),
    PolicyValue(
        "container_memory_max",
        option_help="The largest memory_limit of its containers, below that of the configuration.",
        words=get_args(ContainerMemory),
    ),
    PolicyValue(
        "models",
        option_help="The models and adapters its requests may ask for: names with commas between "
        "them; one that ends in * stands for all that begin so. Without a policy it is all.",
        pattern=rf"(?:{_MODEL_NAMES})(?:,(?:{_MODEL_NAMES})){{0,63}}",
    ),
    PolicyValue(
        "usage_tags",
        option_help="Names of metadata whose values are kept with its usage, to tell what that was "
        "for: up to five, with commas between them.",
        pattern=rf"{_TAG_NAME}(?:,{_TAG_NAME}){{0,4}}",
    ),
    PolicyValue(
        "projects_share_responses",
        option_help="Whether keys of one of its projects see stored responses and conversations of "
        "the others. Without a policy they do not.",
        words=get_args(ToolAccess),
    ),
    PolicyValue(
        "share_weight",
        option_help="Its share of the backends where tenants wait for each other: with 300 it is "
        "served three times as many tokens as one with 100, as without a policy.",
        least=1,
        most=10_000,
    ),
    PolicyValue(
        "usage_by_end_user",
        option_help="Whether its usage is added up by day and end user, too, from now on. Without "
        "a policy it is not.",
        words=get_args(ToolAccess),
    ),
    PolicyValue(
        "operator_content_access",
        option_help="When operators may read what its responses say, with a reason that its audit "
        "log has: while the tenant consents, or always. Without a policy they may not.",
        words=get_args(OperatorContentAccess),
    ),
)
POLICY_VALUES: Final = {one.name: one for one in _VALUES}
"""In the order of the columns."""


def are_domains(text: str) -> bool:
    fits = len(text) <= DOMAINS_CHARS_MAX
    return fits and (not text or all(map(_DOMAIN.fullmatch, text.split(" "))))


def check_changes(changes: PolicyChanges) -> None:
    """Raise `InvalidRequest` for a value out of bounds, an unknown name, or no change."""
    if not changes:
        raise InvalidRequest("There is nothing to change.")
    for name, value in changes.items():
        if name not in POLICY_VALUES:
            raise InvalidRequest(f"There is no policy value {name!r}.", param=name)
        if value is not None:
            POLICY_VALUES[name].check(value)


ZERO_RETENTION: Final = "zero_data_retention"
DEFAULT_RETENTION: Final = "none"
"""The default: the policy of the tenant says how long."""
ORGANIZATION_DEFAULT: Final = "organization_default"
ORGANIZATION_RETENTION_TYPES: Final = (ZERO_RETENTION, DEFAULT_RETENTION)
"""`none` is ours: OpenAI's organizations have no such object instead."""
PROJECT_RETENTION_TYPES: Final = (ORGANIZATION_DEFAULT, DEFAULT_RETENTION, ZERO_RETENTION)
UNSUPPORTED_RETENTION_TYPES: Final = (
    "modified_abuse_monitoring",
    "enhanced_zero_data_retention",
    "enhanced_modified_abuse_monitoring",
)
"""OpenAI's others: nothing is monitored here."""


def keeps_nothing(organization: str | None, project: str | None) -> bool:
    """Return True if zero retention holds for a project."""
    if project is None or project == ORGANIZATION_DEFAULT:
        return organization == ZERO_RETENTION
    return project == ZERO_RETENTION


def check_retention_type(retention_type: str, *, of_project: bool) -> None:
    allowed = PROJECT_RETENTION_TYPES if of_project else ORGANIZATION_RETENTION_TYPES
    if retention_type in allowed:
        return
    listed = ", ".join(f"'{one}'" for one in allowed)
    is_openais = retention_type in UNSUPPORTED_RETENTION_TYPES
    why = "is not supported here" if is_openais else "is no type of data retention"
    raise InvalidRequest(
        f"That {why}: 'retention_type' is one of {listed}.",
        code="invalid_value",
        param="retention_type",
    )
