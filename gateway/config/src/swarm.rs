//! `[swarm]`: this node as a worker of a Docker swarm.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use switchyard_operator_api::JoinAvailability;
use switchyard_operator_api::text::parse_duration;

/// Maximum number of labels of a node, and of bytes of a key or value: all of them are in every description
/// of the node that managers store.
const LABELS_MAX: usize = 64;
const LABEL_MAX: usize = 256;

/// Maximum number of devices that services may name, and of bytes of a name.
const DEVICES_MAX: usize = 1024;
const DEVICE_MAX: usize = 256;

/// The shortest time for which an unused image stays: a task that is assigned has to find the image that was pulled for it.
const RETENTION_MIN: Duration = Duration::from_secs(600);

/// This node as a worker of a Docker swarm.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SwarmConfig {
    /// True if the node may be a member of a swarm.
    pub enabled: bool,
    /// The file with the token by which the node joins without being asked; `None`: it does not.
    pub join_token_file: Option<PathBuf>,
    /// The managers for that join.
    pub managers: Vec<String>,
    /// The availability with which that join begins.
    pub availability: JoinAvailability,
    /// Labels of the node that constraints of services find.
    pub labels: BTreeMap<String, String>,
    /// The first and the last of the host ports from which those are chosen that a service publishes without a number.
    pub port_range: [u16; 2],
    /// The CDI names of the devices that services may name in a label.
    pub allow_devices: BTreeSet<String>,
    /// For how long an image stays that no task of the swarm uses, such as `168h`; `None`: for ever.
    pub image_retention: Option<String>,
}

impl Default for SwarmConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            join_token_file: None,
            managers: Vec::new(),
            availability: JoinAvailability::default(),
            labels: BTreeMap::new(),
            port_range: [61000, 64999],
            allow_devices: BTreeSet::new(),
            image_retention: None,
        }
    }
}

impl SwarmConfig {
    /// Checks what the types do not.
    ///
    /// # Errors
    /// The key within the section, and what is wrong with its value.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        match (&self.join_token_file, self.managers.is_empty()) {
            (Some(_), true) => {
                return Err((
                    "join_token_file",
                    "needs swarm.managers: the managers to join".to_owned(),
                ));
            }
            (None, false) => {
                return Err((
                    "managers",
                    "are only used with swarm.join_token_file".to_owned(),
                ));
            }
            (Some(_), false) | (None, true) => {}
        }
        let most = switchyard_swarm::JOIN_MANAGERS_MAX;
        if self.managers.len() > most {
            return Err((
                "managers",
                format!(
                    "has {} managers, but {most} are allowed",
                    self.managers.len()
                ),
            ));
        }
        for manager in &self.managers {
            if let Err(why) = switchyard_swarm::check_address(manager) {
                return Err((
                    "managers",
                    format!("{manager:?} is no HOST or HOST:PORT: {why}"),
                ));
            }
        }
        let [first, last] = self.port_range;
        if first == 0 || first > last {
            return Err((
                "port_range",
                format!("[{first}, {last}] is no range: write it as [61000, 64999]"),
            ));
        }
        self.check_labels()?;
        self.check_devices()?;
        self.retention().map_err(|why| ("image_retention", why))?;
        Ok(())
    }

    /// For how long an image stays that no task of the swarm uses; `None`: for ever, also if the configuration is not valid.
    #[must_use]
    pub fn image_retention(&self) -> Option<Duration> {
        self.retention().unwrap_or_default()
    }

    fn retention(&self) -> Result<Option<Duration>, String> {
        let Some(text) = &self.image_retention else {
            return Ok(None);
        };
        let time = parse_duration(text).map_err(|why| format!("{text:?} is no time: {why}"))?;
        if time < RETENTION_MIN {
            return Err(format!("{text:?} is less than ten minutes"));
        }
        Ok(Some(time))
    }

    fn check_labels(&self) -> Result<(), (&'static str, String)> {
        if self.labels.len() > LABELS_MAX {
            return Err((
                "labels",
                format!(
                    "has {} labels, but {LABELS_MAX} are allowed",
                    self.labels.len()
                ),
            ));
        }
        for (key, value) in &self.labels {
            let is_word = !key.is_empty()
                && key
                    .bytes()
                    .all(|byte| byte.is_ascii_graphic() && byte != b'=');
            if !is_word || key.len() > LABEL_MAX || value.len() > LABEL_MAX {
                let why = format!(
                    "{key:?} is not a word without `=`, or it or its value has more than {LABEL_MAX} bytes"
                );
                return Err(("labels", why));
            }
        }
        Ok(())
    }

    fn check_devices(&self) -> Result<(), (&'static str, String)> {
        let key = "allow_devices";
        if self.allow_devices.len() > DEVICES_MAX {
            let count = self.allow_devices.len();
            return Err((
                key,
                format!("has {count} devices, but {DEVICES_MAX} are allowed"),
            ));
        }
        match self.allow_devices.iter().find(|name| !is_cdi_name(name)) {
            Some(name) => Err((
                key,
                format!("{name:?} is no CDI name, such as \"nvidia.com/gpu=0\""),
            )),
            None => Ok(()),
        }
    }
}

/// Returns whether a text can be a CDI name, `vendor/class=device`. The label separates names by commas.
fn is_cdi_name(text: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && !word.contains(['/', '=', ',']);
    let Some((kind, device)) = text.split_once('=') else {
        return false;
    };
    let Some((vendor, class)) = kind.split_once('/') else {
        return false;
    };
    text.len() <= DEVICE_MAX
        && text.bytes().all(|byte| byte.is_ascii_graphic())
        && [vendor, class, device].into_iter().all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut SwarmConfig)) -> Option<(&'static str, String)> {
        let mut config = SwarmConfig::default();
        change(&mut config);
        config.check().err()
    }

    #[test]
    fn token_file_and_managers_go_together() {
        assert_eq!(refusal(|_| {}), None);
        let file = || Some(PathBuf::from("/etc/token"));
        assert_eq!(
            refusal(|config| config.join_token_file = file()).unwrap().0,
            "join_token_file"
        );
        let managers = || vec!["m1".to_owned(), "[::1]:2377".to_owned()];
        assert_eq!(
            refusal(|config| config.managers = managers()).unwrap().0,
            "managers"
        );
        let both = |config: &mut SwarmConfig| {
            config.join_token_file = file();
            config.managers = managers();
        };
        assert_eq!(refusal(both), None);
        let why = refusal(|config| {
            both(config);
            config.managers.push("tcp://m1".to_owned());
        });
        assert!(why.unwrap().1.contains("tcp://m1"));
        let why = refusal(|config| {
            both(config);
            config.managers = vec!["m".to_owned(); 17];
        });
        assert!(why.unwrap().1.contains("17 managers"));
    }

    #[test]
    fn port_range_is_one() {
        for range in [[1, 65535], [61000, 61000]] {
            assert_eq!(refusal(|config| config.port_range = range), None);
        }
        for range in [[0, 10], [2, 1]] {
            assert_eq!(
                refusal(|config| config.port_range = range).unwrap().0,
                "port_range",
                "{range:?}"
            );
        }
    }

    #[test]
    fn image_retention_is_a_time_of_ten_minutes_or_more() {
        let with = |text: &str| SwarmConfig {
            image_retention: Some(text.to_owned()),
            ..SwarmConfig::default()
        };
        assert_eq!(SwarmConfig::default().image_retention(), None);
        for (text, minutes) in [("10m", 10), ("168h", 168 * 60), ("7d", 7 * 24 * 60)] {
            let config = with(text);
            assert_eq!(config.check(), Ok(()), "{text}");
            assert_eq!(
                config.image_retention(),
                Some(Duration::from_secs(60 * minutes))
            );
        }
        for wrong in ["", "never", "24", "-1h", "599s", "0d"] {
            let config = with(wrong);
            assert_eq!(config.check().unwrap_err().0, "image_retention", "{wrong}");
            assert_eq!(config.image_retention(), None);
        }
    }

    #[test]
    fn labels_are_few_short_words() {
        let label = |key: &str, value: &str| {
            refusal(|config| drop(config.labels.insert(key.to_owned(), value.to_owned())))
        };
        assert_eq!(label("com.example/rack", "7 b"), None);
        for (key, value) in [
            ("", "x"),
            ("a b", "x"),
            ("a=b", "x"),
            ("k", &"x".repeat(257)),
            (&"k".repeat(257), "x"),
        ] {
            assert_eq!(label(key, value).unwrap().0, "labels", "{key}");
        }
        let many = |config: &mut SwarmConfig| {
            config.labels = (0..65)
                .map(|number| (number.to_string(), String::new()))
                .collect();
        };
        assert!(refusal(many).unwrap().1.contains("65"));
    }

    #[test]
    fn devices_are_cdi_names() {
        let device =
            |name: &str| refusal(|config| config.allow_devices = BTreeSet::from([name.to_owned()]));
        for name in [
            "nvidia.com/gpu=0",
            "nvidia.com/gpu=all",
            "acme.com/tpu=0000:3b:00.0",
        ] {
            assert_eq!(device(name), None, "{name}");
        }
        let long = format!("a/b={}", "x".repeat(253));
        for name in [
            "",
            "/dev/null",
            "gpu=0",
            "a/b=",
            "a/=c",
            "a/b=c,d",
            "a/b=c d",
            "a/b/c=d",
            "a/b=*/",
            &long,
        ] {
            assert_eq!(device(name).unwrap().0, "allow_devices", "{name}");
        }
        let many = |config: &mut SwarmConfig| {
            config.allow_devices = (0..1025).map(|number| format!("a/b={number}")).collect();
        };
        assert!(refusal(many).unwrap().1.contains("1025"));
    }
}
