"""The web pages as the settings want them, with the identity provider that they name."""

from pathlib import Path

from stoker.brain.domain.errors import refusal_error
from stoker.control.control_plane import ControlPlane
from stoker.live.settings.control import ControlSettings
from stoker.web.app import WebPages


def web_pages(control: ControlPlane, settings: ControlSettings) -> WebPages:
    """Return the pages, with the identity provider that the settings name.

    Raises: StokerError `bad_settings` where its library or its secret isn't there.
    """
    oidc = settings.oidc
    if not oidc.issuer:
        return WebPages(control)
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
    return WebPages(control, OpenIdProvider(client, control.clock), oidc)
