"""The web pages as the settings want them, with the identity provider and the other clusters that they name.

Rules: K1  the token for another cluster stays in its file: it is read each time that it is shown, so a new one needs no
           restart
       K2  a file that accounts other than its owner and group may read, or that holds no token, isn't used
       K3  a file system that hangs holds up nobody: the clusters whose files are there are rows that say so
"""

import os
import stat
from functools import partial
from pathlib import Path
from typing import Final

from stoker.adapters.bounded_thread import BoundedThread, TookTooLong
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.control.control_plane import ControlPlane
from stoker.live.settings.control import ControlSettings, OtherClusterSettings, WebSettings
from stoker.web.app import WebPages
from stoker.web.clusters import OtherCluster
from stoker.wire.client.cluster_status import ClusterAnswer, ask_cluster
from stoker.wire.client.trust import Credentials
from stoker.wire.token import is_token

READ_S: Final = 2.0
_BYTES_MAX: Final = 1_024


def web_pages(control: ControlPlane, settings: ControlSettings) -> WebPages:
    """Return the pages, with the identity provider and the other clusters that the settings name.

    Raises: StokerError `bad_settings` where its library or its secret isn't there.
    """
    oidc, others = settings.oidc, other_clusters(settings.web)
    if not oidc.issuer:
        return WebPages(control, others=others)
    try:
        from stoker.adapters.oidc import OidcClient, OpenIdProvider  # few clusters need it
    except ImportError as fault:
        message = f"oidc.issuer wants a library that is not installed: {fault}"
        raise refusal_error(
            "extra_missing", message, "pip install 'stoker[oidc]', or leave oidc.issuer empty"
        ) from fault
    secret = ""
    if oidc.client_secret_file:
        try:
            secret = Path(oidc.client_secret_file).read_text().strip()
        except OSError as fault:
            message = f"oidc.client_secret_file: {fault}"
            raise refusal_error(
                "bad_settings", message, "the control plane's account must be able to read it"
            ) from fault
    client = OidcClient(oidc.issuer, oidc.client_id, secret, oidc.scopes, oidc.user_claim, oidc.groups_claim)
    return WebPages(control, OpenIdProvider(client, control.clock), oidc, others)


def other_clusters(settings: WebSettings) -> list[OtherCluster]:
    """Return the clusters that the settings name, in their order."""
    files = BoundedThread("cluster-tokens", (OSError, StokerError))
    return [OtherCluster(name, each.url, partial(_ask, each, files)) for name, each in settings.clusters.items()]


async def _ask(settings: OtherClusterSettings, files: BoundedThread) -> ClusterAnswer:
    try:
        token = await files.ask(partial(token_in, settings.token_file), READ_S) if settings.token_file else ""
    except StokerError as fault:
        return ClusterAnswer(None, fault.refusal.message)
    except TookTooLong as fault:
        return ClusterAnswer(None, f"its token_file can't be read: {fault}")
    return await ask_cluster(",".join(settings.servers), Credentials(token, settings.ca_file))


def token_in(path: str) -> str:
    """Return the token in a file (K2). Raises: StokerError `bad_token_file`, which has no word of what is in it."""
    try:
        with open(path, "rb", opener=_opened) as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_BYTES_MAX + 1).decode("ascii", "replace").strip()
    except OSError as fault:
        hint = "let the control plane's account read it"
        raise refusal_error("bad_token_file", f"its token_file can't be read: {fault.strerror}", hint) from fault
    if mode & stat.S_IRWXO:
        message = f"its token_file is open to every account (mode {stat.S_IMODE(mode):04o})"
        raise refusal_error("bad_token_file", message, f"chmod o= {path}")
    if not is_token(text):
        hint = "put the whole line into it that `stoker token create` of that cluster printed"
        raise refusal_error("bad_token_file", f"its token_file holds no token: it has {len(text)} characters", hint)
    return text


def _opened(path: str, flags: int) -> int:
    """Open without waiting for the other end, where it is a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)
