"""The console as an ASGI application.

Nothing but what is in `_open_routes` is answered without a session.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route, Router

from gateway.api.access.client_address import client_address
from gateway.api.client_connection import connection_of
from gateway.api.error_responses import described
from gateway.api.streaming import TimedResponse
from gateway.api.urls import path_of
from gateway.console import BASE
from gateway.console.fleet import SPARK_HEIGHT, SPARK_WIDTH
from gateway.console.login_sessions import LOGIN, SESSION_S, LoginAttempts, Visitor
from gateway.console.page import Act, Call, Download, Rendered
from gateway.console.pages import PAGES, account, usage
from gateway.console.rendering import StaticFiles, Templates
from gateway.console.spending import LIMIT_FIELDS
from gateway.console.streams import Streams, Topic
from gateway.errors import GatewayError, InvalidRequest, PermissionDenied, ResourceNotFound
from gateway.services.sign_in import ATTEMPT_S, Attempt
from gateway.settings.console import is_loopback
from gateway.tenancy.permissions import OPERATOR_ROLES
from gateway.tenancy.policy import DAY_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.api.request_body import BodyReader
    from gateway.console.login_sessions import Session
    from gateway.console.page import Page, Services
    from gateway.services.sign_in import SignIn
    from gateway.tenancy import Network
    from gateway.tenancy.permissions import OperatorPermission

FORM_BYTES_MAX: Final = 65_536
FORM_FIELDS_MAX: Final = 200
FORM_TOKEN: Final = "form_token"  # noqa: S105 - the name of a field
VERBATIM: Final = "text"
"""The field whose white space counts."""
FRAGMENT: Final = "x-fragment"
"""Asks for one block of a page."""
LOGOUT: Final = f"{BASE}/logout"
TO_PROVIDER: Final = f"{LOGIN}/provider"
CALLBACK: Final = f"{BASE}/callback"
PREFERENCES: Final = f"{BASE}/preferences"
STATIC: Final = f"{BASE}/static"
STREAM: Final = f"{BASE}/stream"
PREFERENCE_VALUES: Final = {"theme": ("auto", "light", "dark"), "times": ("relative", "utc")}
COLOURS: Final = 4
"""Colours of installations besides that of production."""
PREFERENCE_S: Final = 365 * DAY_S
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_NOT_HERE: Final = (
    "The console answers at addresses of this machine only. Set console.public_url to the origin "
    "that browsers have in their address bar, with https."
)
_FORGED: Final = (
    "This request does not come from a page of this console, so nothing was changed. Go back, "
    "load the page again, and repeat it there."
)
_SIGN_IN: Final = "You are not signed in, or your session has ended. Sign in, and repeat it."
_USED: Final = (
    "This login link was used already, or has expired. 'harmony-gateway console login-link' makes "
    "another."
)


@dataclass(frozen=True, slots=True)
class Cookie:
    """Cookie of sessions.

    Browsers send `__Host-` over TLS alone; over loopback there is none.
    """

    secure: bool
    bare_name: str = "gateway-console"

    @property
    def name(self) -> str:
        return f"__Host-{self.bare_name}" if self.secure else self.bare_name

    def set(self, response: Response, secret: str, *, lasting_s: int = SESSION_S) -> None:
        # Lax: sign-in elsewhere returns by a link from there.
        response.set_cookie(
            self.name, secret, max_age=lasting_s, path="/", secure=self.secure, httponly=True,
            samesite="lax",
        )  # fmt: skip


class Console:
    """ASGI application that answers below /console, in front of another one."""

    def __init__(  # noqa: PLR0913 - what it is in front of, and what its frame says
        self,
        app: ASGIApp,
        services: Services,
        bodies: BodyReader,
        *,
        name: str | None = None,
        public_url: str | None = None,
        sign_in: SignIn | None = None,
        trusted_proxies: Sequence[Network] = (),
    ) -> None:
        """Serve at the origin `public_url`, or without one at addresses of this machine."""
        self._app = app
        self._services = services
        self._sessions = services.sessions
        self._bodies = bodies
        self._public_url = public_url
        self._trusted_proxies = trusted_proxies
        self._sign_in = sign_in
        self._attempts = LoginAttempts()
        self._cookie = Cookie(secure=(public_url or "").startswith("https:"))
        self._attempt_cookie = replace(self._cookie, bare_name="gateway-console-sign-in")
        self._static = StaticFiles(STATIC)
        self._templates = Templates(
            base=BASE,
            installation=name or "Harmony Gateway",
            colour=_colour_of(name),
            static=self._static.url,
            fragment_header=FRAGMENT,
            form_field=FORM_TOKEN,
            limit_fields=LIMIT_FIELDS,
            spans=usage.SPANS,
            groups=usage.GROUPS,
            preferences=PREFERENCE_VALUES,
            stream=STREAM,
            spark=(SPARK_WIDTH, SPARK_HEIGHT),
        )
        self.pages = PAGES
        topics = {page.path: Topic(self._renewing(page)) for page in PAGES if page.live}
        self._streams = Streams(topics, services.is_ending, self._sessions.open_among)
        self.acts: dict[str, Act] = {
            f"{BASE}{act.path}": act for page in PAGES for act in page.acts
        }
        self.routes = [*self._open_routes(), *self._closed_routes()]
        self._router = Router(self.routes, redirect_slashes=False)

    def _open_routes(self) -> list[Route]:
        return [
            Route(f"{STATIC}/{{name}}", self._file, methods=["GET"]),
            Route(LOGIN, self._show_login, methods=["GET"]),
            Route(LOGIN, self._log_in, methods=["POST"]),
            Route(TO_PROVIDER, self._go_to_provider, methods=["GET"]),
            Route(CALLBACK, self._come_back, methods=["GET"]),
        ]

    def _closed_routes(self) -> list[Route]:
        return [
            Route(BASE, self._home, methods=["GET"]),
            Route(LOGOUT, self._log_out, methods=["POST"]),
            Route(PREFERENCES, self._prefer, methods=["POST"]),
            *(
                Route(f"{STREAM}{page.path}", self._streaming(page), methods=["GET"])
                for page in self.pages
                if page.live
            ),
            *(Route(f"{BASE}{page.path}", self._showing(page)) for page in self.pages),
            *(Route(path, self._acting(act), methods=["POST"]) for path, act in self.acts.items()),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not f"{path_of(scope)}/".startswith(f"{BASE}/"):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)

        async def send_safely(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = dict(_HEADERS)
                names = {name for name, _ in message["headers"]}
                if b"cache-control" not in names:
                    headers["cache-control"] = "no-store"
                added = [(name.encode(), value.encode()) for name, value in headers.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        try:
            self._check_host(request)
            await self._router(scope, receive, send_safely)
        except (GatewayError, HTTPException) as error:
            # Raised before an answer begins: pages are rendered whole.
            await self._refusal(request, error)(scope, receive, send_safely)

    # What every request is held against

    def _check_host(self, request: Request) -> None:
        # The name in a browser's address bar: that of another site may lead here, too.
        if self._public_url is None and not is_loopback(request.url.hostname or ""):
            raise PermissionDenied(_NOT_HERE)

    def _origin(self, request: Request) -> str:
        return self._public_url or f"http://{request.url.netloc}"

    def _check_site(self, request: Request) -> None:
        site = request.headers.get("sec-fetch-site")
        if site is None:
            own = request.headers.get("origin") == self._origin(request)
        else:
            own = site == "same-origin"
        if not own:
            raise PermissionDenied(_FORGED)

    async def _session(self, request: Request) -> Session | None:
        secret = request.cookies.get(self._cookie.name)
        session = await self._sessions.find(secret) if secret else None
        if session is not None and (connection := connection_of(request.scope)) is not None:
            connection.trust()
        return session

    async def _form(self, request: Request) -> dict[str, str]:
        body = await self._bodies.read(request.scope, request.receive)
        try:
            text = body.decode("ascii")
            pairs = parse_qsl(
                text, keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX, errors="strict"
            )
        except ValueError:
            raise InvalidRequest("The form cannot be read.") from None
        for name, value in pairs:
            # PostgreSQL's text cannot hold it.
            if "\0" in name or "\0" in value:
                raise InvalidRequest("The form has a NUL character.")
        return {name: value if name == VERBATIM else value.strip() for name, value in pairs}

    async def _own_form(self, request: Request) -> tuple[Session, dict[str, str]]:
        self._check_site(request)
        session = await self._session(request)
        if session is None:
            raise PermissionDenied(_SIGN_IN)
        form = await self._form(request)
        token = form.pop(FORM_TOKEN, "")
        if not hmac.compare_digest(token.encode(), session.form_token.encode()):
            raise PermissionDenied(_FORGED)
        return session, form

    def _visitor(self, request: Request) -> Visitor:
        address = client_address(request.scope, self._trusted_proxies)
        record = request.scope.get("record")
        return Visitor(
            None if address is None else str(address),
            request.headers.get("user-agent"),
            None if record is None else record.request_id,
        )

    def _call(
        self, request: Request, session: Session, form: Mapping[str, str] | None = None
    ) -> Call:
        values = [*request.path_params.values(), *request.query_params.values()]
        if any("\0" in value for value in values):
            raise InvalidRequest("The address has a NUL character, which no name or id has.")
        return Call(
            session=session,
            services=self._services,
            visitor=self._visitor(request),
            query=request.query_params,
            path=request.path_params,
            origin=self._origin(request),
            render=lambda template, block, view: self._templates.fragment(
                template, block, self._context(request, session, "", view)
            ),
            form=form or {},
            connection=connection_of(request.scope),
        )

    # Pages

    def _showing(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def show(request: Request) -> Response:
            session = await self._session(request)
            if session is None:
                return _to_login(request)
            _check_permission(session, page.permission)
            view = await page.read(self._call(request, session))
            if isinstance(view, str):
                return RedirectResponse(f"{BASE}{view}", 303)
            if isinstance(view, Response):
                return view
            if isinstance(view, Download):
                attached = {"content-disposition": f'attachment; filename="{view.name}"'}
                return Response(view.content, headers=attached, media_type=view.media_type)
            block = request.headers.get(FRAGMENT)
            context = self._context(request, session, page.title, view)
            if block is None:
                return HTMLResponse(self._templates.page(page.template, context))
            if block not in page.fragments:
                raise ResourceNotFound("This page has no such fragment.")
            context["is_fragment"] = True
            return HTMLResponse(self._templates.fragment(page.template, block, context))

        return show

    def _renewing(self, page: Page) -> Callable[[], Awaitable[str]]:
        read = page.live
        assert read is not None, "only such pages are renewed"

        async def render() -> str:
            # Nothing in it is of one viewer.
            view = await read(self._services)
            context = {"view": view, "times": "relative", "is_streamed": True}
            return self._templates.fragment(page.template, "live", context)

        return render

    def _streaming(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def stream(request: Request) -> Response:
            session = await self._session(request)
            if session is None:
                raise PermissionDenied(_SIGN_IN)
            _check_permission(session, page.permission)
            self._streams.require_room()
            return TimedResponse(
                self._streams.follow(page.path, request.cookies[self._cookie.name]),
                headers={"x-accel-buffering": "no"},
                media_type="text/event-stream",
            )

        return stream

    def _acting(self, act: Act) -> Callable[[Request], Awaitable[Response]]:
        async def run(request: Request) -> Response:
            session, form = await self._own_form(request)
            _check_permission(session, act.permission)
            answer = await act.run(self._call(request, session, form))
            if isinstance(answer, Response):
                return answer
            if isinstance(answer, Rendered):
                context = self._context(request, session, answer.title, answer.view)
                return HTMLResponse(self._templates.page(answer.template, context))
            return RedirectResponse(f"{BASE}{answer}", 303)

        return run

    async def _home(self, request: Request) -> Response:
        session = await self._session(request)
        if session is None:
            return _to_login(request)
        shown = self._navigation(session) or [account.PAGE]
        return RedirectResponse(f"{BASE}{shown[0].path}", 303)

    async def _file(self, request: Request) -> Response:
        return self._static.response(request.path_params["name"])

    def _navigation(self, session: Session) -> list[Page]:
        allowed = OPERATOR_ROLES[session.role]
        return [
            page
            for page in self.pages
            if page.icon and (page.permission is None or page.permission in allowed)
        ]

    def _context(
        self, request: Request, session: Session | None, title: str, view: object
    ) -> dict[str, Any]:
        chosen = {
            name: _preference(request, name, values) for name, values in PREFERENCE_VALUES.items()
        }
        path = path_of(request.scope)
        query = request.url.query
        return {
            "title": title,
            "view": view,
            "is_streamed": False,
            "is_fragment": False,
            "session": session,
            "navigation": [] if session is None else self._navigation(session),
            "path": path,
            # Empty for the answer to a form: its address is none of a page.
            "here": "" if request.method == "POST" else f"{path.removeprefix(BASE)}?{query}",
            "may": lambda permission: (
                session is not None and permission in OPERATOR_ROLES[session.role]
            ),
            **chosen,
        }

    def _refusal(self, request: Request, error: GatewayError | HTTPException) -> Response:
        if isinstance(error, HTTPException):
            status = error.status_code
            message = "There is no such page." if status == 404 else error.detail
        else:
            answer, detail = described(error)
            status, message = answer.status, detail.message
        context = self._context(request, None, f"Error {status}", message)
        return HTMLResponse(self._templates.page("error.html", context), status)

    # Sessions and preferences

    async def _show_login(self, request: Request) -> Response:
        # The link is used by the button: what looks at links in mails must not use them up.
        token = request.query_params.get("token", "")
        address, session = self._visitor(request).address, None
        if token:
            self._attempts.check(address)
            session = await self._sessions.linked(token)
            if session is None:
                self._attempts.note_failure(address)
        view = {
            "token": token,
            "invited": session,
            "failure": _USED if token and session is None else "",
            "provider": self._sign_in and self._sign_in.host,
        }
        context = self._context(request, None, "Sign in", view)
        return HTMLResponse(self._templates.page("login.html", context))

    async def _log_in(self, request: Request) -> Response:
        self._check_site(request)
        visitor, token = self._visitor(request), (await self._form(request)).get("token", "")
        self._attempts.check(visitor.address)
        secret = await self._sessions.open(token, visitor) if token else None
        if secret is None:
            if token:
                self._attempts.note_failure(visitor.address)
            raise PermissionDenied(_USED)
        response = RedirectResponse(BASE, 303)
        self._cookie.set(response, secret)
        return response

    async def _go_to_provider(self, request: Request) -> Response:
        attempt = Attempt.new()
        callback = self._origin(request) + CALLBACK
        response = RedirectResponse(await self._provider().redirect(attempt, callback), 303)
        self._attempt_cookie.set(response, attempt.dump(), lasting_s=ATTEMPT_S)
        return response

    async def _come_back(self, request: Request) -> Response:
        provider = self._provider()
        attempt = Attempt.parse(request.cookies.get(self._attempt_cookie.name, ""))
        if attempt is None:
            return RedirectResponse(LOGIN, 303)
        callback = self._origin(request) + CALLBACK
        operator = await provider.complete(attempt, callback, request.query_params)
        secret = await self._sessions.begin(operator.name, operator.role, self._visitor(request))
        response = RedirectResponse(BASE, 303)
        self._attempt_cookie.set(response, "", lasting_s=0)
        self._cookie.set(response, secret)
        return response

    def _provider(self) -> SignIn:
        if self._sign_in is None:
            raise ResourceNotFound("This console has no provider: console.sign_in is not set.")
        return self._sign_in

    async def _log_out(self, request: Request) -> Response:
        session, _ = await self._own_form(request)
        await self._services.playground.keys.end(session)
        await self._sessions.end(session, session.id, self._visitor(request))
        response = RedirectResponse(LOGIN, 303)
        self._cookie.set(response, "", lasting_s=0)
        return response

    async def _prefer(self, request: Request) -> Response:
        _, form = await self._own_form(request)
        back = form.get("back", "")
        response = RedirectResponse(f"{BASE}{back}" if back.startswith("/") else BASE, 303)
        for name, values in PREFERENCE_VALUES.items():
            if form.get(name) in values:
                response.set_cookie(
                    f"console-{name}", form[name], max_age=PREFERENCE_S, path=BASE, httponly=True,
                    secure=self._cookie.secure, samesite="lax",
                )  # fmt: skip
        return response


def _colour_of(name: str | None) -> str:
    # Installations are told apart at a glance; whatever is production looks alike.
    if name is None:
        return "none"
    return "production" if "prod" in name.lower() else str(sum(name.encode()) % COLOURS)


def _preference(request: Request, name: str, values: Sequence[str]) -> str:
    chosen = request.cookies.get(f"console-{name}", "")
    return chosen if chosen in values else values[0]


def _check_permission(session: Session, permission: OperatorPermission | None) -> None:
    if permission is not None and permission not in OPERATOR_ROLES[session.role]:
        raise PermissionDenied(
            f"This takes the permission '{permission}', which the role '{session.role}' does not "
            "have. Ask an owner of this gateway.",
            code="insufficient_permissions",
        )


def _to_login(request: Request) -> Response:
    # A script's request cannot sign in, so its page is redirected there.
    if FRAGMENT in request.headers or "hx-request" in request.headers:
        return Response(status_code=401, headers={"hx-redirect": LOGIN})
    return RedirectResponse(LOGIN, 303)
