"""Tests of benchmarks/monitoring: dashboard and alerts use metrics and labels of an export."""

import configparser
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from fields import fields_of
from launching import finished
from places import ROOT

from commbench.interop.exports.measures import MEASURES

FOLDER = ROOT / "benchmarks" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())
ALERTS = yaml.safe_load((FOLDER / "alerts.yml").read_text())
#: Labels that Prometheus adds to what it collects.
ADDED = {"instance", "job"}
VARIABLES = {one["name"]: one for one in DASHBOARD["templating"]["list"]}


def queries() -> list[str]:
    """Return the queries of every panel."""
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def rules() -> list[dict[str, Any]]:
    """Return every alerting rule."""
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


ASKED = [
    *queries(),
    *(rule["expr"] for rule in rules()),
    *(str(one.get("query")) for one in VARIABLES.values()),
]


def test_the_dashboard_asks_for_every_metric_there_is_and_no_other():
    """Query exactly the metrics of an export."""
    assert set(MEASURES) == set(re.findall(r"\bcommbench_\w+", " ".join(queries())))


def labels_of(query: str) -> set[str]:
    """Return the labels of the metrics that a query names, which all have to exist."""
    names = re.findall(r"commbench_\w+", query)
    return {"benchmark", *ADDED}.union(*(MEASURES[name].labels for name in names))


@pytest.mark.parametrize("query", ASKED)
def test_selectors_and_groupings_name_labels_that_the_metrics_have(query):
    """Select and group by labels of the queried metrics."""
    for name, selector in re.findall(r"(commbench_\w+)\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+)(?:=~|!=|!~|=)", selector)) <= labels_of(name)
    for used in re.findall(r"\bby \(([^)]*)\)", query):
        assert set(used.split(", ")) <= labels_of(query)


def test_legends_and_summaries_name_labels_that_the_metrics_have():
    """Use only placeholders of existing labels."""
    shown = [(rule["expr"], rule["annotations"]["summary"]) for rule in rules()]
    for panel in DASHBOARD["panels"]:
        shown += fields_of(panel.get("targets", ()), "expr", "legendFormat")
    for query, text in shown:
        assert set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text)) <= labels_of(query), query


def test_variables_of_queries_are_defined():
    """Use only defined variables, and the dashboard's data source."""
    text = json.dumps(DASHBOARD)
    used = set(re.findall(r"\$\{?([a-z]\w*)\}?", text))
    assert set(VARIABLES) == used
    prometheus = {"type": "prometheus", "uid": "${datasource}"}
    for panel in DASHBOARD["panels"]:
        if "targets" in panel:
            assert prometheus == panel["datasource"]
    assert "datasource" == VARIABLES["datasource"]["type"]


def test_an_installed_commbench_has_them():
    """Install both files."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    (pattern,) = settings["options.data_files"]["share/commbench/benchmarks/monitoring"].split(",")
    assert {"alerts.yml", "grafana.json"} == set(fields_of(ROOT.glob(pattern.strip()), "name"))


# -------------------------------------------------------------------------------------- by promtool


@pytest.fixture(scope="module")
def promtool():
    """Return Prometheus' checker; skip without it."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("needs promtool: Debian's package prometheus")
    return program


def write_yaml(file: Path, content: dict[str, Any]) -> None:
    """Write a file of Prometheus."""
    file.write_text(yaml.safe_dump(content))


def run_promtool(promtool: str, *arguments: str | Path) -> tuple[int, str]:
    """Return promtool's exit code and output."""
    done = finished(promtool, *arguments)
    return done.returncode, done.stdout + done.stderr


def test_prometheus_understands_the_alerts_and_every_query(promtool, tmp_path):
    """Pass the alerts and all queries through promtool."""
    chosen = [re.sub(r"\$\{?\w+\}?", ".*", query) for query in queries()]
    recorded = [{"record": f"query:{number}", "expr": expr} for number, expr in enumerate(chosen)]
    file = tmp_path / "queries.yml"
    write_yaml(file, {"groups": [{"name": "dashboard", "rules": recorded}]})
    for each in (FOLDER / "alerts.yml", file):
        code, output = run_promtool(promtool, "check", "rules", each)
        assert 0 == code, output


def test_alerts_fire_when_they_should(promtool, tmp_path):
    """Fire for a slower interval, wrong data, a slow host, an old run, a missed expectation and a
    soak's events.
    """
    text = (ROOT / "tests" / "data" / "alerts_test.yml").read_text()
    assert set(fields_of(rules(), "alert")) == set(re.findall(r"alertname: (\w+)", text))
    bare = [{**rule, "annotations": {}} for rule in rules()]
    write_yaml(tmp_path / "alerts.yml", {"groups": [{"name": "bare", "rules": bare}]})
    (tmp_path / "test.yml").write_text(text)
    code, output = run_promtool(promtool, "test", "rules", tmp_path / "test.yml")
    assert 0 == code, output
