//! The health check of a task as it is run: what the service asks for, then what its image has, then docker's
//! defaults.

use std::time::Duration;

use switchyard_core::{Error, Result};

use crate::from_image::ImageHealth;
use crate::plan::{HealthCheck, HealthCommand};

/// Docker's defaults.
const INTERVAL: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(30);
const RETRIES: u32 = 3;
const START_PERIOD: Duration = Duration::ZERO;
const START_INTERVAL: Duration = Duration::from_secs(5);

/// Command that runs a check's text if the image names no shell.
const SHELL: [&str; 2] = ["/bin/sh", "-c"];

/// The most bytes of a command line: the kernel takes no longer argument.
const COMMAND_MAX: usize = 128 << 10;

/// A health check in which nothing is left open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResolvedCheck {
    /// The command line, never empty.
    pub(crate) command: Vec<String>,
    /// The time after which a check has failed.
    pub(crate) timeout: Duration,
    /// Timing of the checks, and the number of failures that counts.
    pub(crate) schedule: CheckSchedule,
}

/// Timing of a task's checks, and the number of failures that makes it unhealthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CheckSchedule {
    /// The time from the end of a check to the next, never 0.
    pub(crate) interval: Duration,
    /// Consecutive failures after which the task is unhealthy, never 0.
    pub(crate) retries: u32,
    /// The time after the start in which failures do not count, until the task is healthy.
    pub(crate) start_period: Duration,
    /// The interval during that time, never 0.
    pub(crate) start_interval: Duration,
}

/// Returns whether a service's check depends on the image's configuration.
pub(crate) fn depends_on_image(service: &HealthCheck) -> bool {
    service.command != HealthCommand::None
}

/// The health check of a task; `None` if its health is not checked.
///
/// # Errors
/// `InvalidArgument` if the command line is too long.
pub(crate) fn resolve(service: &HealthCheck, image: &ImageHealth) -> Result<Option<ResolvedCheck>> {
    let ImageHealth {
        check: image,
        shell,
    } = image;
    let asked = if service.command == HealthCommand::Image {
        &image.command
    } else {
        &service.command
    };
    let command = match asked {
        HealthCommand::Image | HealthCommand::None => return Ok(None),
        HealthCommand::Exec(words) => words.clone(),
        HealthCommand::Shell(script) => {
            let shell = if shell.is_empty() {
                SHELL.map(str::to_owned).to_vec()
            } else {
                shell.clone()
            };
            shell.into_iter().chain([script.clone()]).collect()
        }
    };
    let bytes = command
        .iter()
        .fold(0_usize, |sum, word| sum.saturating_add(word.len() + 1));
    if bytes > COMMAND_MAX {
        let why = format!("its command has {bytes} bytes, and may have {COMMAND_MAX}");
        return Err(Error::invalid("container.healthcheck.test", why));
    }
    Ok(Some(ResolvedCheck {
        command,
        timeout: service.timeout.or(image.timeout).unwrap_or(TIMEOUT),
        schedule: CheckSchedule {
            interval: service.interval.or(image.interval).unwrap_or(INTERVAL),
            retries: service.retries.or(image.retries).unwrap_or(RETRIES),
            start_period: service
                .start_period
                .or(image.start_period)
                .unwrap_or(START_PERIOD),
            start_interval: service
                .start_interval
                .or(image.start_interval)
                .unwrap_or(START_INTERVAL),
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn image(command: HealthCommand) -> ImageHealth {
        let second = |count| Some(Duration::from_secs(count));
        let check = HealthCheck {
            command,
            interval: second(7),
            timeout: second(8),
            retries: Some(9),
            start_period: second(10),
            start_interval: second(11),
        };
        ImageHealth {
            check,
            shell: Vec::new(),
        }
    }

    #[test]
    fn each_field_is_the_services_or_the_images_or_the_default() {
        let shell = HealthCommand::Shell("a".into());
        let service = HealthCheck {
            command: shell,
            retries: Some(1),
            ..HealthCheck::default()
        };
        let made = resolve(&service, &image(HealthCommand::Exec(strings(&["b"]))))
            .unwrap()
            .unwrap();
        let schedule = CheckSchedule {
            interval: Duration::from_secs(7),
            retries: 1,
            start_period: Duration::from_secs(10),
            start_interval: Duration::from_secs(11),
        };
        let command = strings(&["/bin/sh", "-c", "a"]);
        assert_eq!(
            made,
            ResolvedCheck {
                command,
                timeout: Duration::from_secs(8),
                schedule
            }
        );
        let made = resolve(&service, &ImageHealth::default()).unwrap().unwrap();
        let schedule = CheckSchedule {
            interval: Duration::from_secs(30),
            retries: 1,
            start_period: Duration::ZERO,
            start_interval: Duration::from_secs(5),
        };
        assert_eq!(
            (made.timeout, made.schedule),
            (Duration::from_secs(30), schedule)
        );
    }

    #[test]
    fn command_is_the_services_or_the_images_or_none() {
        use HealthCommand::{Exec, Image, None as No, Shell};
        let command = |service: HealthCommand, image_has: HealthCommand| {
            let service = HealthCheck {
                command: service,
                ..HealthCheck::default()
            };
            resolve(&service, &image(image_has))
                .unwrap()
                .map(|check| check.command)
        };
        let of_image = Exec(strings(&["b"]));
        assert_eq!(command(Image, of_image.clone()), Some(strings(&["b"])));
        assert_eq!(
            command(Exec(strings(&["a"])), of_image.clone()),
            Some(strings(&["a"]))
        );
        assert_eq!(command(No, of_image), None);
        assert_eq!(command(Image, Image), None);
        assert_eq!(command(Image, No), None);
        assert_eq!(
            command(Shell("a".into()), No),
            Some(strings(&["/bin/sh", "-c", "a"]))
        );
    }

    #[test]
    fn text_is_run_by_the_shell_of_the_image() {
        let with_shell = ImageHealth {
            shell: strings(&["/bin/bash", "-ec"]),
            ..ImageHealth::default()
        };
        let service = HealthCheck {
            command: HealthCommand::Shell("a".into()),
            ..HealthCheck::default()
        };
        let made = resolve(&service, &with_shell).unwrap().unwrap();
        assert_eq!(made.command, strings(&["/bin/bash", "-ec", "a"]));
    }

    #[test]
    fn command_line_is_bounded() {
        let long = HealthCommand::Exec(vec!["x".repeat(COMMAND_MAX)]);
        let service = HealthCheck {
            command: long,
            ..HealthCheck::default()
        };
        let error = resolve(&service, &ImageHealth::default()).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("container.healthcheck.test: its command has "),
            "{error}"
        );
    }
}
