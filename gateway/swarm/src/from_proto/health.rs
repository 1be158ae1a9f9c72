//! The health check of a task.

use std::time::Duration;

use prost_types::Duration as WireDuration;
use switchyard_core::{Error, Result};
use switchyard_proto::docker::swarmkit::v1 as swarm;

use super::duration::positive;
use super::words::words;
use crate::plan::{HealthCheck, HealthCommand, check_time};

/// The health check; that of the image if the service has none.
pub(super) fn health(wire: Option<&swarm::HealthConfig>) -> Result<HealthCheck> {
    let Some(wire) = wire else {
        return Ok(HealthCheck::default());
    };
    let swarm::HealthConfig {
        test,
        interval,
        timeout,
        retries,
        start_period,
        start_interval,
    } = wire;
    let field = "container.healthcheck";
    let test = words(&format!("{field}.test"), test)?;
    let command = HealthCommand::parse(&test)
        .map_err(|why| Error::invalid(format_args!("{field}.test"), why))?;
    let retries = match u32::try_from(*retries) {
        Ok(retries) => Some(retries).filter(|retries| *retries > 0),
        Err(_) => {
            return Err(Error::invalid(
                format_args!("{field}.retries"),
                format!("{retries} is negative"),
            ));
        }
    };
    let time = |name: &str, wire: &Option<WireDuration>| -> Result<Option<Duration>> {
        let field = format!("{field}.{name}");
        check_time(&field, positive(&field, wire.as_ref())?)
    };
    Ok(HealthCheck {
        command,
        interval: time("interval", interval)?,
        timeout: time("timeout", timeout)?,
        retries,
        start_period: time("start_period", start_period)?,
        start_interval: time("start_interval", start_interval)?,
    })
}
