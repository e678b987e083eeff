"""The files in `deploy/`, checked with the tools that use them, if these run here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from snowmelt.testing import LocalService
from support.debian_packages import find_or_install

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RUNBOOK = ROOT / "docs" / "how-to" / "respond-to-alerts.md"


def run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_accepts_the_rules_and_each_fires() -> None:
    promtool = find_or_install(["promtool"], ["prometheus"])
    folder = DEPLOY / "prometheus"
    assert "SUCCESS" in run(promtool, "check", "config", folder / "prometheus.yml")
    assert "SUCCESS" in run(promtool, "test", "rules", folder / "alerts_test.yml")


def test_each_alert_has_a_runbook() -> None:
    rules = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    alerts = re.findall(r"- alert: (\w+)", rules)
    links = re.findall(r"runbook: (\S+)", rules)
    assert links == [f"how-to/respond-to-alerts.md#{name.lower()}" for name in alerts]
    assert re.findall(r"(?m)^## (\w+)$", RUNBOOK.read_text()) == alerts


def test_rules_and_dashboard_use_metrics_that_a_service_has() -> None:
    used = set()
    for file in ("prometheus/alerts.yml", "grafana/snowmelt.json"):
        used |= set(re.findall(r"\b(?:snowmelt|process)_\w+", (DEPLOY / file).read_text()))
    with LocalService(s3_port=0) as service:
        text = httpx.get(f"{service.url}/metrics").text
    known = set()
    for family in text_string_to_metric_families(text):
        suffixes = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}
        known |= {family.name + each for each in suffixes.get(family.type, ("",))}
    # This variable belongs to the S3 endpoint, which has a port of its own.
    known.add("snowmelt_select_scanned_bytes_total")
    # It is there after the first backup.
    known.add("snowmelt_backup_age_seconds")
    # Only sites of a failover group have these.
    known |= {"snowmelt_replication_behind_seconds", "snowmelt_replication_silent_seconds"}
    assert used - known == set()


def test_the_dashboard_can_be_imported() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "snowmelt.json").read_text())
    assert dashboard["uid"] == "snowmelt-overview"
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places) > 5


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    systemd = find_or_install(["systemd-analyze"], ["systemd"])
    program = shutil.which("true")
    assert program is not None
    unit = tmp_path / "snowmelt.service"
    text = (DEPLOY / "snowmelt.service").read_text()
    # Replace the path, because there is no installation under /opt.
    unit.write_text(text.replace("/opt/snowmelt/bin/snowmelt", program))
    assert run(systemd, "verify", unit).strip() == ""
    shown = run(systemd, "security", "--offline=true", "--threshold=40", unit)
    assert "Overall exposure level" in shown
