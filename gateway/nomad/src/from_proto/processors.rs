//! The processors of a node, as an agent reports them.

use switchyard_proto::nomad::base::proto as base;

use crate::session::Processors;

impl From<&base::NomadConfig> for Processors {
    /// The agent's report; empty if it sent none.
    fn from(config: &base::NomadConfig) -> Self {
        let topology = config
            .driver
            .as_ref()
            .and_then(|driver| driver.topology.as_ref());
        let Some(base::ClientTopology {
            cores,
            override_total_compute,
            ..
        }) = topology
        else {
            return Self::default();
        };
        // Computed as the agent does: a core's base speed, or else its maximum speed, or a guess.
        let speed = |core: &base::ClientTopologyCore| {
            [core.base_speed, core.max_speed, core.guess_speed]
                .into_iter()
                .find(|speed| *speed > 0)
        };
        let sum = cores.iter().filter_map(speed).fold(0, u64::saturating_add);
        Self {
            cores: u32::try_from(cores.len()).unwrap_or(u32::MAX),
            total_mhz: if *override_total_compute > 0 {
                *override_total_compute
            } else {
                sum
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(cores: Vec<base::ClientTopologyCore>, total: u64) -> base::NomadConfig {
        let topology = base::ClientTopology {
            cores,
            override_total_compute: total,
            ..base::ClientTopology::default()
        };
        let driver = base::NomadDriverConfig {
            topology: Some(topology),
            ..base::NomadDriverConfig::default()
        };
        base::NomadConfig {
            driver: Some(driver),
        }
    }

    #[test]
    fn cpu_speeds_add_up_unless_overridden() {
        let core = |base_speed, max_speed, guess_speed| base::ClientTopologyCore {
            base_speed,
            max_speed,
            guess_speed,
            ..base::ClientTopologyCore::default()
        };
        let cores = vec![
            core(2000, 3000, 1000),
            core(0, 3000, 1000),
            core(0, 0, 1000),
        ];
        let configured = config(cores.clone(), 0);
        assert_eq!(
            Processors::from(&configured),
            Processors {
                cores: 3,
                total_mhz: 6000
            }
        );
        let configured = config(cores, 500);
        assert_eq!(
            Processors::from(&configured),
            Processors {
                cores: 3,
                total_mhz: 500
            }
        );
    }

    #[test]
    fn cpu_speeds_are_unknown_without_agent_data() {
        assert_eq!(
            Processors::from(&base::NomadConfig::default()),
            Processors::default()
        );
    }
}
