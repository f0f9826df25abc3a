"""Certificates of a control plane for its listeners and its peers, kept valid while it runs."""

import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from stoker.api.http.tls import load_credentials, server_context
from stoker.brain.domain.errors import StokerError
from stoker.ports import CertificateAuthority, CertificateHolder, Clock, KeyAndChain, Telemetry

LOOK_S: Final = 2.0
"""Between two looks at the authority's file, which `stoker ca rotate` changes."""


class ServerTls:
    """Current key and certificate of one control plane.

    Rules: V1  new connections get new credentials when two thirds of the old ones' time have passed, when the authority
               was rotated, and when the names of the machine have changed; connections that are open stay
           V2  an authority that can't be read any more is told, and what was read goes on
    """

    def __init__(
        self, authority: CertificateAuthority, name: str, hosts: Callable[[], Sequence[str]], clock: Clock
    ) -> None:
        """`name`: of this control plane. `hosts`: its host names and addresses now."""
        self.authority = authority
        self.changed: list[Callable[[KeyAndChain], object]] = []
        """Called with each new credentials."""
        self._name = name
        self._hosts = hosts
        self._clock = clock
        self._served = tuple(hosts())
        self.credentials = authority.server(name, self._served)

    async def run(self, telemetry: Telemetry) -> None:
        """Keep the credentials valid, for ever (V1)."""
        while True:
            await self._clock.sleep(LOOK_S)
            rotated = False
            try:
                rotated = await self.authority.look()
            except StokerError as fault:  # V2
                telemetry.warn("authority_unreadable", error=fault.refusal.message, hint=fault.refusal.hint)
            hosts = tuple(self._hosts())
            if rotated or hosts != self._served or self._clock.now() >= self.credentials.renew_at:
                self._served = hosts
                self.credentials = self.authority.server(self._name, hosts)
                telemetry.event("certificate_renewed", rotated=rotated, authority=self.authority.fingerprint)
                for each in self.changed:
                    each(self.credentials)

    def http_context(self) -> ssl.SSLContext:
        """Return what REST serves with; its certificates are kept valid too (V1)."""
        context = server_context(self.credentials.key, self.credentials.chain)
        self.changed.append(lambda now: load_credentials(context, now.key, now.chain))
        return context

    def caller(self, kind: str, shown: Mapping[str, Iterable[bytes]]) -> CertificateHolder | None:
        """Return who calls, its subject without the kind, which is `node` or `control`; None = it is none of that kind.

        `shown`: what gRPC has verified of the caller, `auth_context()`.
        """
        certificates = list(shown.get("x509_pem_cert", ()))
        if len(certificates) != 1:
            return None
        try:
            holder = self.authority.holder(certificates[0])
        except ValueError:
            return None
        found, _, name = holder.subject.partition(":")
        return holder._replace(subject=name) if found == kind else None
