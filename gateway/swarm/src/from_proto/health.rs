//! The health check of a task.

use switchyard_core::{Error, Result};
use switchyard_docker_options::fields::text;
use switchyard_proto::docker::swarmkit::v1 as swarm;

use super::duration::positive;
use crate::plan::{HealthCheck, HealthCommand};

/// The health check; that of the image if the service has none.
pub(super) fn health(wire: Option<&swarm::HealthConfig>) -> Result<HealthCheck> {
    let Some(wire) = wire else { return Ok(HealthCheck::default()) };
    let swarm::HealthConfig { test, interval, timeout, retries, start_period, start_interval } = wire;
    let field = "container.healthcheck";
    for (index, word) in test.iter().enumerate() {
        text(format_args!("{field}.test[{index}]"), word)?;
    }
    let command = match test.as_slice() {
        [] => HealthCommand::Image,
        [kind] if kind == "NONE" => HealthCommand::None,
        [kind, command @ ..] if kind == "CMD" && !command.is_empty() => HealthCommand::Exec(command.to_vec()),
        [kind, script] if kind == "CMD-SHELL" => HealthCommand::Shell(script.clone()),
        [kind, ..] => {
            let why =
                format!("it begins with {kind:?}: it is none of NONE, CMD and its command, and CMD-SHELL");
            return Err(Error::invalid(format_args!("{field}.test"), why));
        }
    };
    let retries = match u32::try_from(*retries) {
        Ok(retries) => Some(retries).filter(|retries| *retries > 0),
        Err(_) => {
            return Err(Error::invalid(format_args!("{field}.retries"), format!("{retries} is negative")));
        }
    };
    Ok(HealthCheck {
        command,
        interval: positive(&format!("{field}.interval"), interval.as_ref())?,
        timeout: positive(&format!("{field}.timeout"), timeout.as_ref())?,
        retries,
        start_period: positive(&format!("{field}.start_period"), start_period.as_ref())?,
        start_interval: positive(&format!("{field}.start_interval"), start_interval.as_ref())?,
    })
}
