"""Bodies of the admin API. Keys that they lack are refused (`api.admin.routes.AdminCall.body`)."""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from gateway.errors import InvalidRequest
from gateway.limits.money import ANY_TIER, Component, PriceTier
from gateway.protocol.admin.limits import KeyLimits
from gateway.protocol.base import WHOLE, Many, NullableModel, WireModel
from gateway.protocol.request_errors import invalid, unsupported, wrong_value
from gateway.tenancy import (
    HostedTool,
    KeyTerms,
    ModelPermissions,
    ModelsMode,
    TierDefault,
)
from gateway.tenancy.permissions import OperatorRole
from gateway.tenancy.scopes import SCOPES

if TYPE_CHECKING:
    from gateway.tenancy import Network

NAME_CHARS_MAX: Final = 256
MODELS_MAX: Final = 256
NETWORKS_MAX: Final = 64
TOOLS_LACKING: Final = ("file_search", "image_generation")
"""Hosted tools of OpenAI's that this server does not have."""
LIFETIME_MAX_S: Final = 10 * 366 * 24 * 3600
SECOND_MAX: Final = 253_402_300_799
"""The last one of the year 9999."""


def _printable(name: str) -> str:
    """The database's `text` takes no NUL, and no reader of a list a line break."""
    if not name.isprintable() or not name.strip():
        raise ValueError("must have printable characters alone, and one that is no space")
    return name


DisplayName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=NAME_CHARS_MAX),
    AfterValidator(_printable),
]
ModelId = DisplayName
Lifetime = Annotated[int, Field(ge=1, le=LIFETIME_MAX_S), WHOLE]
ShortText = Annotated[str, StringConstraints(max_length=NAME_CHARS_MAX, pattern=r"^[^\x00]*$")]


class NoBody(WireModel):
    """For what takes none: an empty object at most."""


class SinkResume(WireModel):
    """`POST /admin/v1/usage/sinks/{name}/resume`. `delivered`: it has the batch that it was sent
    last, so that is not sent again.
    """

    delivered: bool = False


class ProjectCreate(NullableModel):
    """`POST /organization/projects`. Where a project's data is kept is not for it to choose."""

    name: DisplayName
    external_key_id: ShortText | None = None
    geography: ShortText | None = None
    residency: dict[str, Any] | None = None

    def check_supported(self) -> None:
        """Raises `InvalidRequest` for what this server cannot do."""
        _check_absent(self, "external_key_id", "geography", "residency")


class DataRetentionUpdate(WireModel):
    """What is to be kept (`gateway.tenancy.retention`)."""

    retention_type: Annotated[str, Field(max_length=64)]


class ProjectUpdate(NullableModel):
    """`POST /organization/projects/{id}`: what is left out stays."""

    name: DisplayName | None = None
    external_key_id: ShortText | None = None
    geography: ShortText | None = None

    def check_supported(self) -> None:
        """Raises `InvalidRequest` for what this server cannot do."""
        _check_absent(self, "external_key_id", "geography")


class KeyExtras(NullableModel):
    """`harmony` of a key that is made: what it may do beyond OpenAI's fields."""

    allowed_cidrs: Annotated[Many[str], Field(max_length=NETWORKS_MAX)] = ()
    allowed_models: Annotated[Many[ModelId], Field(max_length=MODELS_MAX)] = ()
    limits: KeyLimits = KeyLimits()


class ServiceAccountCreate(NullableModel):
    """`POST …/service_accounts`: an account, and unless only that is asked for a first key."""

    name: DisplayName
    create_service_account_only: bool = False
    expires_in_seconds: Lifetime | None = None
    harmony: KeyExtras = KeyExtras()

    def check_consistent(self) -> None:
        """Raises `InvalidRequest` for the lifetime or the terms of a key that is not asked for."""
        if not self.create_service_account_only:
            return
        for name in ("expires_in_seconds", "harmony"):
            if name in self.model_fields_set and getattr(self, name) is not None:
                why = "it is for the key, and 'create_service_account_only' asks for none"
                raise invalid(name, why)


class ServiceAccountUpdate(NullableModel):
    """`POST …/service_accounts/{id}`: what is left out stays."""

    name: DisplayName | None = None
    role: Literal["member", "owner"] | None = None


class AccountKeyCreate(NullableModel):
    """`POST …/service_accounts/{id}/api_keys`: one more key of an account; no scopes mean all."""

    name: DisplayName | None = None
    scopes: Annotated[Many[str], Field(max_length=len(SCOPES))] = ()
    expires_in_seconds: Lifetime | None = None
    harmony: KeyExtras = KeyExtras()


class ProjectKeyUpdate(NullableModel):
    """`POST …/api_keys/{id}`: what is left out stays; no scopes at all mean all."""

    scopes: Annotated[Many[str], Field(max_length=len(SCOPES))] | None = None
    expires_in_seconds: Lifetime | None = None


class KeyRotate(NullableModel):
    """`POST …/api_keys/{id}/rotate`: how long the key that is replaced goes on."""

    overlap_seconds: Annotated[int, Field(ge=0, le=LIFETIME_MAX_S), WHOLE] | None = None


class AdminKeyCreate(NullableModel):
    """`POST /organization/admin_api_keys`: a key for the admin API alone."""

    name: DisplayName
    expires_in_seconds: Lifetime | None = None
    scopes: Annotated[Many[str], Field(max_length=1)] = ()


class ModelPermissionsUpdate(WireModel):
    """`POST …/model_permissions`: the models that a project may use, or those that it may not."""

    mode: ModelsMode
    model_ids: Annotated[Many[ModelId], Field(max_length=MODELS_MAX)]

    @property
    def permissions(self) -> ModelPermissions:
        """Each model once, in the order of the request."""
        return ModelPermissions(self.mode, tuple(dict.fromkeys(self.model_ids)))


class ToolPermission(WireModel):
    """Whether requests of a project may use a hosted tool."""

    enabled: bool


class HostedToolsUpdate(NullableModel):
    """`POST …/hosted_tool_permissions`: what is left out stays."""

    code_interpreter: ToolPermission | None = None
    file_search: ToolPermission | None = None
    image_generation: ToolPermission | None = None
    mcp: ToolPermission | None = None
    web_search: ToolPermission | None = None

    def tools_off(self, before: frozenset[HostedTool]) -> frozenset[HostedTool]:
        """Those that are off from now on. Raises `InvalidRequest` where one is to be enabled that
        this server does not have.
        """
        for name in TOOLS_LACKING:
            given: ToolPermission | None = getattr(self, name)
            if given is not None and given.enabled:
                raise unsupported(f"{name}.enabled", "This server has no such hosted tool")
        off = set(before)
        for tool in get_args(HostedTool):
            if (asked := getattr(self, tool)) is not None:
                off.discard(tool) if asked.enabled else off.add(tool)
        return frozenset(off)


def _listed(given: object) -> object:
    """OpenAI's form of all of them is a word in the place of the list."""
    return ["all"] if given == "all" else given


class ServiceTiersUpdate(NullableModel):
    """`POST …/service_tier_settings`: what is left out stays."""

    default: TierDefault | None = None
    enabled_tiers: (
        Annotated[Many[Literal["all", "flex", "fast", "ultrafast"]], BeforeValidator(_listed)]
        | None
    ) = None

    def changes(self) -> dict[str, Any]:
        """Fields of `ProjectControls`, each tier once."""
        found: dict[str, Any] = {} if self.default is None else {"tier_default": self.default}
        if self.enabled_tiers is None:
            return found
        named = tuple(dict.fromkeys(self.enabled_tiers))
        return found | {"tiers": None if "all" in named else named}


class TenantCreate(WireModel):
    """`POST /admin/v1/tenants`; the name is checked as that of the command line is."""

    name: ShortText


class TenantUpdate(WireModel):
    """`POST /admin/v1/tenants/{name}`: values of its policy, null for that of the settings."""

    policy: dict[str, str | int | None]


class TenantKeyCreate(NullableModel):
    """`POST /admin/v1/tenants/{name}/admin_api_keys`: the first admin key of a tenant."""

    name: ShortText = "owner"


class PriceEnd(NullableModel):
    """`POST /admin/v1/prices/end`; without a `tenant` (its name) the price of all."""

    model: ModelId
    tier: PriceTier = ANY_TIER
    tenant: ShortText | None = None


class PriceCreate(PriceEnd):
    """`POST /admin/v1/prices`. `valid_from` is in unix seconds."""

    nano_per_unit: dict[Component, Annotated[int, Field(strict=True)]]
    valid_from: Annotated[int, Field(ge=0, le=SECOND_MAX), WHOLE] | None = None


class Hold(WireModel):
    """`POST /admin/v1/tenants/{name}/hold`: while it is held nothing of a tenant is deleted."""

    held: bool = True


class Erasure(WireModel):
    """`POST /admin/v1/tenants/{name}/erasure`: a `safety_identifier` or `user` of requests."""

    end_user: Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class Export(WireModel):
    """`POST /admin/v1/tenants/{name}/export`. `content`: what requests and responses say, too."""

    content: bool = False


class OperatorCreate(NullableModel):
    """`POST /admin/v1/operators`: a key of the operator plane."""

    name: DisplayName
    role: OperatorRole = "owner"
    expires_in_seconds: Lifetime | None = None


def scopes_of(given: tuple[str, ...]) -> frozenset[str]:
    """Raises `InvalidRequest` for one that is not known."""
    for index, scope in enumerate(given):
        if scope not in SCOPES:
            raise wrong_value(f"scopes[{index}]", scope, tuple(SCOPES))
    return frozenset(given)


def terms_of(scopes: tuple[str, ...], extras: KeyExtras) -> KeyTerms:
    """What a key that is asked for may do. Raises `InvalidRequest`."""
    return KeyTerms(
        scopes=scopes_of(scopes),
        networks=tuple(
            _network(f"harmony.allowed_cidrs[{index}]", text)
            for index, text in enumerate(extras.allowed_cidrs)
        ),
        models=tuple(dict.fromkeys(extras.allowed_models)),
    )


def _network(param: str, text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError:
        raise InvalidRequest(
            f"Invalid '{param}': it is no network such as 203.0.113.0/24 or 2001:db8::/32, whose "
            "bits behind the length are zero.",
            code="invalid_value",
            param=param,
        ) from None


def _check_absent(body: WireModel, *names: str) -> None:
    for name in names:
        if getattr(body, name) is not None:
            raise unsupported(name, "Leave it out: all projects are kept in this server's database")
