//! Checks of the units, on a node with systemd.

use std::collections::BTreeMap;

use switchyard_config::ContainerdMode;

use super::codes::node::{START_LIMIT, UNIT_NOT_ENABLED, UNIT_SETTINGS};
use super::facts::{Facts, UNIT};
use super::finding::{Finding, Severity};

const LOGKEEPER_UNIT: &str = "switchyard-logkeeper.service";

/// The properties that are looked at.
const PROPERTIES: &str = "--property=Id,LoadState,UnitFileState,ActiveState,Result,Delegate,KillMode,StartLimitIntervalUSec";

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    if !facts.view.has_systemd() {
        return Vec::new();
    }
    let Some(text) = facts.output("systemctl", &["show", PROPERTIES, UNIT, LOGKEEPER_UNIT]) else {
        return Vec::new();
    };
    let has_logkeeper = facts.config.logkeeper.mode == ContainerdMode::External;
    let units = text.split("\n\n").map(Unit::parse);
    let units =
        units.filter(|unit| unit.name == UNIT || (unit.name == LOGKEEPER_UNIT && has_logkeeper));
    units
        .flat_map(|unit| unit.findings(facts.is_up()))
        .collect()
}

/// A unit, by what `systemctl show` prints of it.
struct Unit<'t> {
    name: &'t str,
    properties: BTreeMap<&'t str, &'t str>,
}

impl<'t> Unit<'t> {
    fn parse(text: &'t str) -> Self {
        let properties: BTreeMap<_, _> = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .collect();
        Self {
            name: properties.get("Id").copied().unwrap_or_default(),
            properties,
        }
    }

    fn get(&self, property: &str) -> &'t str {
        self.properties.get(property).copied().unwrap_or_default()
    }

    fn findings(&self, is_up: bool) -> Vec<Finding> {
        let name = self.name;
        match self.get("LoadState") {
            "loaded" => {}
            "masked" => {
                let found = format!("{name} is masked");
                let mend = format!("systemctl unmask {name} && systemctl enable --now {name}");
                return vec![Finding::new(&UNIT_NOT_ENABLED, found).command(mend)];
            }
            // A daemon may be started by something else.
            state => {
                let severity = if is_up {
                    Severity::Note
                } else {
                    Severity::Warning
                };
                let found = format!("{name}: {state}");
                return vec![Finding::new(&UNIT_NOT_ENABLED, found).severity(severity)];
            }
        }
        [self.enabled(), self.settings(), self.start_limit()]
            .into_iter()
            .flatten()
            .collect()
    }

    fn enabled(&self) -> Option<Finding> {
        let state = self.get("UnitFileState");
        (state == "disabled" || state == "enabled-runtime").then(|| {
            Finding::new(&UNIT_NOT_ENABLED, format!("{} is {state}", self.name))
                .command(format!("systemctl enable {}", self.name))
        })
    }

    fn settings(&self) -> Option<Finding> {
        let wanted = [("Delegate", "yes"), ("KillMode", "process")];
        let wrong: Vec<String> = wanted
            .into_iter()
            .filter(|(property, value)| {
                let set = self.get(property);
                !set.is_empty() && set != *value
            })
            .map(|(property, value)| format!("{property}={}, not {value}", self.get(property)))
            .collect();
        (!wrong.is_empty()).then(|| {
            Finding::new(
                &UNIT_SETTINGS,
                format!("{}: {}", self.name, wrong.join("; ")),
            )
            .command(format!("systemctl cat {}", self.name))
        })
    }

    fn start_limit(&self) -> Option<Finding> {
        let name = self.name;
        let mend = format!("systemctl reset-failed {name} && systemctl start {name}");
        if self.get("Result") == "start-limit-hit" {
            let found = format!("{name} has failed too often, and is not started again");
            return Some(
                Finding::new(&START_LIMIT, found)
                    .severity(Severity::Error)
                    .command(mend),
            );
        }
        let interval = self.get("StartLimitIntervalUSec");
        (!interval.is_empty() && interval != "0").then(|| {
            Finding::new(
                &START_LIMIT,
                format!("{name}: StartLimitIntervalSec is {interval}"),
            )
        })
    }
}
