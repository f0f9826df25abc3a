"""What does the OpenAPI document hold?

FastAPI gathers the routes, msgspec the schemas of every shape that crosses the wire.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from stoker.api.http.contract import REF
from stoker.api.http.security import secured
from stoker.wire.rest.audit import AuditListQuery, AuditListView
from stoker.wire.rest.cluster import ClusterView, HealthView, ReadyView
from stoker.wire.rest.control import ControlView
from stoker.wire.rest.event import EventView
from stoker.wire.rest.gpu import GpuListView
from stoker.wire.rest.job import (
    ForgottenJobView,
    JobListQuery,
    JobListView,
    JobsSubmittedView,
    JobsToldView,
    JobsView,
    SignalBody,
    WhyView,
)
from stoker.wire.rest.job_event import JobEventsQuery, JobEventsView
from stoker.wire.rest.log import LogQuery
from stoker.wire.rest.node import DrainBody, ForgetQuery, LabelsBody, NodeListView, TaintsBody
from stoker.wire.rest.partition import NewPartitionBody, PartitionBody, PartitionListView
from stoker.wire.rest.problem import Problem
from stoker.wire.rest.quota import QuotaBody, QuotaView
from stoker.wire.rest.submit import JobsBody
from stoker.wire.rest.task import MessageView, TaskBody, TaskListQuery, TaskListView, TaskSubmittedView
from stoker.wire.rest.tenant import NewTenantBody, TenantBody, TenantListView
from stoker.wire.rest.token import NewTokenBody, NewTokenView, TokenListView
from stoker.wire.rest.usage import UsageReportQuery, UsageView

SHAPES: Final[tuple[type[msgspec.Struct], ...]] = (
    *(JobsBody, JobsSubmittedView, ForgottenJobView, JobsView, JobsToldView, SignalBody),
    *(JobListQuery, JobListView, WhyView, LogQuery),
    *(TaskBody, TaskSubmittedView, TaskListQuery, TaskListView, MessageView),
    *(GpuListView, NodeListView, DrainBody, ForgetQuery, LabelsBody, TaintsBody),
    *(PartitionListView, NewPartitionBody, PartitionBody),
    *(TenantListView, NewTenantBody, TenantBody, QuotaBody, QuotaView),
    *(TokenListView, NewTokenBody, NewTokenView),
    *(UsageReportQuery, UsageView),
    *(AuditListQuery, AuditListView, JobEventsQuery, JobEventsView),
    *(ClusterView, ControlView, HealthView, ReadyView, EventView, Problem),
)
"""Those that they hold come along."""


def document_of(app: FastAPI, *, open_to_owner: bool) -> Callable[[], dict[str, Any]]:
    """A replacement for `FastAPI.openapi`; the document is made once."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _made(app, open_to_owner=open_to_owner)
        return app.openapi_schema

    return document


def _made(app: FastAPI, *, open_to_owner: bool) -> dict[str, Any]:
    made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    _, schemas = msgspec.json.schema_components(SHAPES, ref_template=REF)
    made.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
    return secured(made, open_to_owner=open_to_owner)
