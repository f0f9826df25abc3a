"""Targets of notifications that the operator of a control plane allows, and their sending.

People name targets, and the control plane calls them from inside the site's network: so it calls only webhooks that
its settings name, URLs below prefixes that they list, and the one mail server.

Rules: A1  a URL is below a prefix if scheme, host and port are the same, and its path begins with that of the prefix
           and ends there or goes on after a slash
       A2  mail goes to recipients of any domain, or of those that the settings list
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from stoker.adapters.notify_mail import MailServer, mail
from stoker.adapters.notify_webhook import post
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.notify import DeliveryResult, Message, NoticeState, target_kind, target_shown, url_fault
from stoker.brain.domain.suggestion import did_you_mean

_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Sender of notifications to the targets that the settings allow."""

    server: MailServer | None
    """None = no mail is sent."""
    domains: Sequence[str]
    """Of mail addresses, and all beneath each. Empty = all."""
    webhooks: Mapping[str, str]
    """URL by name; `slack:` before it = in Slack's shape."""
    prefixes: Sequence[str]

    def fault(self, target: str) -> Refusal | None:
        """Return why this target can't be told anything; None = it can."""
        kind, shown = target_kind(target), target_shown(target)
        if kind == "mail":
            return self._mail_fault(target)
        if kind == "webhook":
            name = target.partition(":")[2]
            nothing = "this control plane has none: an operator adds it to `notify.webhooks`"
            hint = did_you_mean(name, sorted(self.webhooks), nothing)
            return None if name in self.webhooks else _no(shown, f"no webhook is called {name}", hint)
        url = target.removeprefix("slack:")
        if any(is_below(url, prefix) for prefix in self.prefixes):
            return None
        hint = "name a webhook of this control plane (webhook:NAME), or ask an operator to add the address to "
        return _no(shown, "this control plane may not call it", f"{hint}`notify.url_prefixes` or `notify.webhooks`")

    def _mail_fault(self, target: str) -> Refusal | None:
        if self.server is None:
            hint = "an operator sets `notify.smtp.host`; a webhook may be told instead"
            return _no(target, "this control plane sends no mail", hint)
        domain = target.rpartition("@")[2].lower()
        if not self.domains or any(domain == each or domain.endswith(f".{each}") for each in self.domains):
            return None
        return _no(target, f"mail goes to {', '.join(self.domains)} only", "give an address there")

    async def send(self, target: str, message: Message) -> DeliveryResult:
        """Tell a target, once."""
        if target_kind(target) == "mail":
            if self.server is None:
                return DeliveryResult(NoticeState.FAILED, "no mail server")
            return await mail(self.server, target.partition(":")[2], message)
        if target_kind(target) == "webhook":
            target = self.webhooks[target.partition(":")[2]]
        return await post(target.removeprefix("slack:"), message, slack=target.startswith("slack:"))


def is_below(url: str, prefix: str) -> bool:
    """Return whether a URL is one that the prefix allows (A1)."""
    if url_fault(url):
        return False
    asked, allowed = urlsplit(url), urlsplit(prefix)
    same = (asked.scheme, asked.hostname, _port(asked)) == (allowed.scheme, allowed.hostname, _port(allowed))
    folder = allowed.path.rstrip("/")
    if not same or "%2e" in asked.path.lower():
        return False
    return asked.path.startswith(f"{folder}/") or asked.path == folder


def _port(parts: SplitResult) -> int | None:
    return parts.port or _PORTS.get(parts.scheme)


def _no(target: str, why: str, hint: str) -> Refusal:
    return refuse("notify_not_allowed", f"{target[:80]} can't be told anything: {why}", hint, target=target[:80])
