"""Bytes from the server to the sites and back through NVFlare, such that no site can hold up the others."""

from __future__ import annotations

import concurrent.futures
import logging
import math
import time
from collections.abc import Mapping
from typing import Any

from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message

from atoll import wire
from atoll.deploy import streams
from atoll.deploy.cell import connection_name
from atoll.deploy.firewall import CHANNEL
from atoll.engines.remote import TOPIC
from atoll.version import __version__

log = logging.getLogger("atoll.server")
POLL_SECONDS = 0.2  # between checks of the connections
ECHO_SECONDS = 30.0  # for a site to answer an echo
MIN_BYTES_PER_SECOND = 64_000  # of a connection: a site on a slower one times out
LOST_CONNECTION = "lost the connection"
ECHO_REQUEST = {"atoll": __version__, "run": "", "kind": "echo"}


class PendingRequest(Signal):  # type: ignore[misc]
    """Ends the wait for an answer when it is triggered, with the reason as its value."""

    began = math.inf  # when it was sent; not yet


class NVFlareCarrier:
    """Sends bytes to the sites as requests on NVFlare's auxiliary channel, and returns their answers."""

    def __init__(self, cell: Any) -> None:
        self.cell = cell
        self.threads = concurrent.futures.ThreadPoolExecutor(max_workers=64, thread_name_prefix="atoll")
        self.greetings: dict[str, tuple[concurrent.futures.Executor, PendingRequest]] = {}  # the last one per site

    def session(self, site: str) -> str | None:
        """The name of a site's current connection; None if it has none."""
        return connection_name(self.cell, site)

    def greet(self, agent: Any) -> None:
        """Send a first request to a site that has connected: by it the site knows that it was accepted.

        Each site has one thread for this, and a new connection ends the wait on the previous one: a site that keeps reconnecting
        without answering does not hold up the others.
        """
        site, request = agent.get_fqcn(), PendingRequest()
        if site not in self.greetings:
            self.greetings[site] = concurrent.futures.ThreadPoolExecutor(1, f"greet-{site}"), PendingRequest()
        thread, previous = self.greetings[site]
        self.greetings[site] = thread, request
        previous.trigger(LOST_CONNECTION)
        thread.submit(self._greet, site, request)

    def _greet(self, site: str, request: PendingRequest) -> None:
        if not request.triggered:
            self._send(site, wire.encode(ECHO_REQUEST), ECHO_SECONDS, request)

    def send(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | str]:
        """Every site's answer, or why there is none.

        A site whose connection breaks is not waited for, nor one that takes longer than `timeout` plus the time that the slowest
        accepted connection needs for the data: NVFlare itself would wait as long as a byte arrives now and then.
        """
        replies: dict[str, bytes | str] = {}
        waiting: dict[concurrent.futures.Future[bytes | str], tuple[str, str, PendingRequest]] = {}
        for site, data in requests.items():
            session, request = self.session(site), PendingRequest()
            if session is None:
                replies[site] = "is not connected"
            else:
                waiting[self.threads.submit(self._send, site, data, timeout, request)] = (site, session, request)
        while waiting:
            done, _ = concurrent.futures.wait(waiting, POLL_SECONDS, concurrent.futures.FIRST_COMPLETED)
            for future in done:
                replies[waiting.pop(future)[0]] = future.result()
            for site, session, request in waiting.values():
                carried = len(requests[site]) + streams.received_bytes(site)
                if self.session(site) != session:
                    request.trigger(LOST_CONNECTION)
                elif time.monotonic() - request.began > timeout + carried / MIN_BYTES_PER_SECOND:
                    request.trigger(f"timed out after {timeout:g} seconds")
        return {site: replies[site] for site in requests}  # in the order of the requests, whoever answered first

    def _send(self, site: str, data: bytes, timeout: float, request: PendingRequest) -> bytes | str:
        request.began = time.monotonic()
        try:
            reply = self.cell.send_request(
                channel=CHANNEL,
                target=site,
                topic=TOPIC,
                request=Message({}, data),  # plain bytes: NVFlare unpacks nothing at either end
                timeout=timeout,
                optional=True,
                abort_signal=request,
            )
        except Exception as error:  # whatever one site's answer does to NVFlare, the others continue
            log.exception("%s could not be asked", site)
            return f"could not be reached ({type(error).__name__})"
        finally:
            streams.drop_unawaited(site, self.cell.requests_dict)
        code = reply.get_header(MessageHeaderKey.RETURN_CODE)  # set by NVFlare here: the firewall drops a site's own
        if code is None:
            return bytes(reply.payload or b"")
        if request.triggered or self.session(site) is None:
            return str(request.value) if request.triggered else LOST_CONNECTION
        return f"timed out after {timeout:g} seconds" if code == ReturnCode.TIMEOUT else f"could not be reached ({code})"
