from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gateway.admin.transactions import Ownership
from gateway.errors import StartupError, installation
from gateway.services.sign_in import SignIn
from gateway.wiring.admin import admin_services

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.admin.resources import OperatorServices
    from gateway.api.request_body import BodyReader
    from gateway.console.application import Console
    from gateway.tenancy import Network
    from gateway.wiring.process import Process


def console(
    app: Any,
    process: Process,
    services: OperatorServices,
    bodies: BodyReader,
    *,
    public: Any,
    trusted_proxies: Sequence[Network],
) -> Console:
    """Build the console in front of `app`; `public` is the application that clients reach."""
    if find_spec("jinja2") is None:
        raise StartupError(
            "the console needs what is not installed: jinja2",
            remedy=f"Install it, in a checkout: {installation('console')}. Or set console.enabled "
            "to false.",
        )
    from gateway.console.application import FORM_BYTES_MAX, Console
    from gateway.console.login_sessions import Sessions
    from gateway.console.page import Services
    from gateway.console.playground import Playground, PlaygroundKeys

    base = process.foundation
    chosen = base.settings.console.sign_in
    tenant = admin_services(base.settings, base.database, process.access, process.models)
    sessions = Sessions(base.database, process.access.peppers)
    return Console(
        app,
        Services(
            services,
            tenant,
            sessions,
            Ownership(base.database),
            api_port=base.settings.server.port,
            models=lambda: [model.id for model in process.models.list()],
            is_ending=lambda: process.replica.dependencies.supervisor.is_draining,
            playground=Playground(public, PlaygroundKeys(tenant.keys), process.tool_grants.served),
        ),
        replace(bodies, own_bytes_max=FORM_BYTES_MAX),
        name=base.settings.console.name,
        public_url=base.settings.console.public_url,
        sign_in=None if chosen.issuer is None else SignIn(chosen, process.federation.key_sets),
        trusted_proxies=trusted_proxies,
    )
