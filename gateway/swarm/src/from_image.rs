//! Reads the health check of an image from its configuration: JSON that the image's author wrote.

use std::time::Duration;

use serde::Deserialize;
use switchyard_core::{Error, Result};
use switchyard_docker_options::fields::text;

use crate::plan::{HealthCheck, HealthCommand, check_time};

/// The health check of an image's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ImageHealth {
    /// The health check.
    pub(crate) check: HealthCheck,
    /// The program and arguments that run a text; empty for the default.
    pub(crate) shell: Vec<String>,
}

/// The part of an image's configuration that is read. Other members are skipped.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    config: Option<Config>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Config {
    healthcheck: Option<Healthcheck>,
    shell: Option<Vec<String>>,
}

/// Times are in nanoseconds; 0 is for none.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Healthcheck {
    test: Option<Vec<String>>,
    interval: i64,
    timeout: i64,
    retries: i64,
    start_period: i64,
    start_interval: i64,
}

/// The health check of the image with this configuration.
///
/// # Errors
/// `InvalidArgument`, naming the field.
pub(crate) fn health(config: &str) -> Result<ImageHealth> {
    let Document { config } = serde_json::from_str(config).map_err(|fault| {
        let why = "it cannot be read, so that its health check is not known; --no-healthcheck runs the image without";
        Error::invalid("configuration of the image", why).with_source(fault)
    })?;
    let Config { healthcheck, shell } = config.unwrap_or_default();
    let shell = shell.unwrap_or_default();
    let Some(healthcheck) = healthcheck else {
        return Ok(ImageHealth {
            check: HealthCheck::default(),
            shell,
        });
    };
    let Healthcheck {
        test,
        interval,
        timeout,
        retries,
        start_period,
        start_interval,
    } = healthcheck;
    let words = test.unwrap_or_default();
    for word in words.iter().chain(&shell) {
        text("Healthcheck of the image", word)?;
    }
    let command = HealthCommand::parse(&words)
        .map_err(|why| Error::invalid("Healthcheck.Test of the image", why))?;
    let retries = u32::try_from(retries).map_err(|_| {
        Error::invalid(
            "Healthcheck.Retries of the image",
            format!("{retries} is no number of checks"),
        )
    })?;
    let check = HealthCheck {
        command,
        interval: time("Interval", interval)?,
        timeout: time("Timeout", timeout)?,
        retries: Some(retries).filter(|retries| *retries > 0),
        start_period: time("StartPeriod", start_period)?,
        start_interval: time("StartInterval", start_interval)?,
    };
    Ok(ImageHealth { check, shell })
}

fn time(name: &str, nanoseconds: i64) -> Result<Option<Duration>> {
    let field = format!("Healthcheck.{name} of the image");
    let time = u64::try_from(nanoseconds)
        .map_err(|_| Error::invalid(&field, format!("{nanoseconds} is negative")))
        .map(Duration::from_nanos)?;
    check_time(&field, Some(time).filter(|time| !time.is_zero()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn health_check_is_read_as_docker_build_writes_it() {
        let read = health(
            r#"{"os":"linux","config":{"User":"","Shell":["/bin/bash","-c"],"Healthcheck":{"Test":["CMD-SHELL",
            "curl -f http://localhost/ || exit 1"],"Interval":5000000000,"Timeout":3000000000,"Retries":4,
            "StartPeriod":60000000000,"StartInterval":1000000000}},"history":[{}]}"#,
        )
        .unwrap();
        let seconds = |count| Some(Duration::from_secs(count));
        let check = HealthCheck {
            command: HealthCommand::Shell("curl -f http://localhost/ || exit 1".into()),
            interval: seconds(5),
            timeout: seconds(3),
            retries: Some(4),
            start_period: seconds(60),
            start_interval: seconds(1),
        };
        assert_eq!(
            read,
            ImageHealth {
                check,
                shell: strings(&["/bin/bash", "-c"])
            }
        );
    }

    #[test]
    fn image_without_a_health_check_has_none() {
        for config in [
            "{}",
            r#"{"config":null}"#,
            r#"{"config":{}}"#,
            r#"{"config":{"Healthcheck":null,"Shell":null}}"#,
            r#"{"config":{"Healthcheck":{"Test":null,"Retries":0}}}"#,
        ] {
            assert_eq!(health(config).unwrap(), ImageHealth::default(), "{config}");
        }
        let none = health(r#"{"config":{"Healthcheck":{"Test":["NONE"]}}}"#).unwrap();
        assert_eq!(none.check.command, HealthCommand::None);
    }

    #[test]
    fn what_is_malformed_is_named() {
        for (part, expected) in [
            (
                r#""Healthcheck":{"Test":["curl"]}"#,
                "Healthcheck.Test of the image: it begins with \"curl\"",
            ),
            (
                r#""Healthcheck":{"Retries":-1}"#,
                "Healthcheck.Retries of the image: -1",
            ),
            (
                r#""Healthcheck":{"Interval":-5}"#,
                "Healthcheck.Interval of the image: -5 is negative",
            ),
            (
                r#""Healthcheck":{"Timeout":5}"#,
                "Healthcheck.Timeout of the image: ",
            ),
            (
                r#""Healthcheck":{"Test":["CMD","a\u0000b"]}"#,
                "Healthcheck of the image: it contains a NUL",
            ),
            (
                r#""Healthcheck":{"Interval":"5s"}"#,
                "configuration of the image: it cannot be read",
            ),
            (
                r#""Healthcheck":"curl""#,
                "configuration of the image: it cannot be read",
            ),
        ] {
            let error = health(&format!(r#"{{"config":{{{part}}}}}"#))
                .unwrap_err()
                .to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let deep = format!(
            r#"{{"config":{}1{}}}"#,
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert!(health(&deep).is_err());
    }
}
