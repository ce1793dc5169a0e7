"""The engine across machines, at the server: bytes to the sites and back, such that no site keeps the others waiting."""

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
POLL_SECONDS = 0.2  # seconds between looks at the connections
ECHO_SECONDS = 30.0  # seconds for a site to say that it is there
MIN_BYTES_PER_SECOND = 64_000  # bytes a second that a line carries: a site that is slower runs out of time
LOST_CONNECTION = "lost the connection"
ECHO_REQUEST = {"atoll": __version__, "run": "", "kind": "echo"}


class PendingRequest(Signal):  # type: ignore[misc]
    """Ends the wait for an answer when it is triggered, with the reason."""

    began = math.inf  # when it was asked; not yet


class NVFlareCarrier:
    """Bytes to the sites as requests of NVFlare's auxiliary channel, and back."""

    def __init__(self, cell: Any) -> None:
        self.cell = cell
        self.threads = concurrent.futures.ThreadPoolExecutor(max_workers=64, thread_name_prefix="atoll")
        self.welcomes: dict[str, tuple[concurrent.futures.Executor, PendingRequest]] = {}

    def session(self, site: str) -> str | None:
        """The name of a site's present connection; None where there is none."""
        return connection_name(self.cell, site)

    def welcome(self, agent: Any) -> None:
        """Say a first word to a site that has connected: by it the site knows that it was let in.

        Each site has one thread for it, and a new connection ends the wait on the one before: a site that connects again and
        again without a word does not keep the others waiting.
        """
        site, question = agent.get_fqcn(), PendingRequest()
        thread, before = self.welcomes.get(site) or (
            concurrent.futures.ThreadPoolExecutor(1, f"welcome-{site}"),
            PendingRequest(),
        )
        self.welcomes[site] = thread, question
        before.trigger(LOST_CONNECTION)
        thread.submit(self._welcome, site, question)

    def _welcome(self, site: str, question: PendingRequest) -> None:
        if not question.triggered:
            self._send(site, wire.encode(ECHO_REQUEST), ECHO_SECONDS, question)

    def send(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | str]:
        """Every site's answer, or why there is none.

        A site whose connection breaks is not waited for, nor one that takes longer than `timeout` and the time that a slow line
        needs for what was sent: NVFlare itself waits for as long as a byte comes now and then.
        """
        replies: dict[str, bytes | str] = {}
        waiting: dict[concurrent.futures.Future[bytes | str], tuple[str, str, PendingRequest]] = {}
        for site, data in requests.items():
            session, question = self.session(site), PendingRequest()
            if session is None:
                replies[site] = "is not connected"
            else:
                waiting[self.threads.submit(self._send, site, data, timeout, question)] = (site, session, question)
        while waiting:
            done, _ = concurrent.futures.wait(waiting, POLL_SECONDS, concurrent.futures.FIRST_COMPLETED)
            for future in done:
                replies[waiting.pop(future)[0]] = future.result()
            for site, session, question in waiting.values():
                carried = len(requests[site]) + streams.received_bytes(site)
                if self.session(site) != session:
                    question.trigger(LOST_CONNECTION)
                elif time.monotonic() - question.began > timeout + carried / MIN_BYTES_PER_SECOND:
                    question.trigger(f"timed out after {timeout:g} seconds")
        return {site: replies[site] for site in requests}  # in the order they were asked in, whoever answered first

    def _send(self, site: str, data: bytes, timeout: float, question: PendingRequest) -> bytes | str:
        question.began = time.monotonic()
        try:
            reply = self.cell.send_request(
                channel=CHANNEL,
                target=site,
                topic=TOPIC,
                request=Message({}, data),  # plain bytes: NVFlare unpacks nothing, at either end
                timeout=timeout,
                optional=True,
                abort_signal=question,
            )
        except Exception as error:  # whatever one site's answer does to NVFlare, the others go on
            log.exception("%s could not be asked", site)
            return f"could not be reached ({type(error).__name__})"
        finally:
            streams.drop_unawaited(site, self.cell.requests_dict)
        code = reply.get_header(MessageHeaderKey.RETURN_CODE)  # of this end: the gate takes none from a site
        if code is None:
            return bytes(reply.payload or b"")
        if question.triggered or self.session(site) is None:
            return str(question.value) if question.triggered else LOST_CONNECTION
        return f"timed out after {timeout:g} seconds" if code == ReturnCode.TIMEOUT else f"could not be reached ({code})"
