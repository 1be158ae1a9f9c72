//! Tests of plans: the result of each option, and the errors of refused ones.

use proptest::prelude::*;
use rmpv::Value;
use switchyard_core::ErrorKind;
use switchyard_core::spec::*;

use super::*;
use crate::configs::{list, map, pairs, session, task, texts};
use crate::plan::{ConfinedMount, ImageRequest, NamedPort};
use crate::plugin_config::{AllowedModes, PluginConfig, VolumesConfig};

mod confinement;
mod files;
mod keys;
mod networks;
mod port_variables;
mod ports;
mod random;
mod relabels;
mod volumes;
mod whole;

/// The plan of a task with these options, for an agent without a plugin configuration.
#[track_caller]
fn planned<const N: usize>(entries: [(&str, Value); N]) -> Plan {
    plan(&task(entries), &session(PluginConfig::default())).unwrap()
}

/// The plan of a task with these options, for an agent with this configuration.
#[track_caller]
fn planned_for<const N: usize>(config: PluginConfig, entries: [(&str, Value); N]) -> Plan {
    plan(&task(entries), &session(config)).unwrap()
}

/// Checks that a task is refused with this error.
#[track_caller]
fn refused_task(task: &nomad::TaskConfig, config: PluginConfig, kind: ErrorKind, text: &str) {
    let error = plan(task, &session(config)).unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (kind, text));
}

/// Checks that an option with this value is invalid, with this error.
#[track_caller]
fn invalid(key: &str, value: impl Into<Value>, text: &str) {
    refused_task(
        &task([(key, value.into())]),
        PluginConfig::default(),
        ErrorKind::InvalidArgument,
        text,
    );
}

/// Checks that an option with this value is not supported, with this error.
#[track_caller]
fn impossible(key: &str, value: impl Into<Value>, text: &str) {
    refused_task(
        &task([(key, value.into())]),
        PluginConfig::default(),
        ErrorKind::Unimplemented,
        text,
    );
}

/// The configuration of an operator who allows much.
fn generous() -> PluginConfig {
    let volumes = VolumesConfig {
        enabled: true,
        ..VolumesConfig::default()
    };
    PluginConfig {
        allow_privileged: true,
        allow_caps: vec!["ALL".to_owned()],
        volumes,
        ..PluginConfig::default()
    }
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}
