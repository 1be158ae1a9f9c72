//! Checks of the configuration: its files, and what of them is in force.

use super::codes::daemon::{
    CONFIG_DOUBTFUL, CONFIG_INVALID, CONFIG_OVERRIDDEN, CONFIG_PENDING, CONFIG_UNKNOWN,
    RELOAD_REFUSED,
};
use super::facts::Facts;
use super::finding::Finding;
use super::text::first_of;

/// Maximum number of keys that a finding names.
const NAMED_MAX: usize = 10;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    let invalid = facts.config_error.as_ref();
    // The variables and the arguments of the unit count too.
    let check = if facts.view.has_systemd() {
        "switchyard config check --unit"
    } else {
        "switchyard config check"
    };
    found.extend(invalid.map(|why| Finding::new(&CONFIG_INVALID, why).command(check)));
    found.extend(
        facts
            .warnings
            .iter()
            .map(|warning| Finding::new(&CONFIG_DOUBTFUL, warning)),
    );
    let ignored = facts.ignored.iter();
    found.extend(ignored.map(|unknown| Finding::new(&CONFIG_UNKNOWN, unknown).command(check)));
    // The unit of the package sets this one for good.
    let overridden = facts
        .overridden
        .iter()
        .filter(|overridden| overridden.key != "logkeeper.mode");
    found.extend(overridden.map(|overridden| {
        let text = format!(
            "{}: {} is overridden by {}",
            overridden.location, overridden.key, overridden.by
        );
        Finding::new(&CONFIG_OVERRIDDEN, text).command("switchyard config dump --origin")
    }));
    let Some(config) = facts
        .status
        .as_ref()
        .ok()
        .and_then(|status| status.config.as_ref())
    else {
        return found;
    };
    found.extend(config.refused.as_ref().map(|refused| {
        let text = format!("refused at {}: {}", refused.at, refused.why);
        Finding::new(&RELOAD_REFUSED, text)
            .command("switchyard config check && switchyard config reload")
    }));
    let pending: Vec<String> = config
        .pending
        .iter()
        .map(|change| format!("{} ({})", change.key, change.effect))
        .collect();
    if !pending.is_empty() {
        let text = first_of(&pending, NAMED_MAX);
        found.push(Finding::new(&CONFIG_PENDING, text).command("switchyard status"));
    }
    found
}
