//! The incidents of the drill, by their numbers.

use super::incident::{ListedIncident, Place, Setup};
use super::incidents::{
    clients, containerd, devices, disks, images, monitoring, network, nomad, processes, runtime,
    swarm,
};

/// All incidents.
pub const INCIDENTS: [ListedIncident; 24] = [
    here(1, Setup::plain(images::slow_registry)),
    here(2, Setup::plain(images::old_password)),
    here(
        3,
        Setup::prepared(processes::with_volume, processes::cannot_end),
    ),
    here(
        4,
        Setup::prepared(runtime::with_runtime, runtime::begins_no_command),
    ),
    here(5, Setup::plain(clients::leaks_sessions)),
    here(6, Setup::plain(clients::floods)),
    here(7, Setup::external(containerd::hangs)),
    ListedIncident {
        elsewhere: Some("dpkg replaces packages in the guest alone: tests/guest/packages.rs"),
        ..here(8, Setup::external(containerd::restarts))
    },
    here(9, Setup::plain(containerd::shim_hangs)),
    here(10, Setup::plain(disks::slow_logs)),
    here(
        11,
        Setup::prepared(disks::with_small_disk, disks::nearly_full),
    ),
    here(12, Setup::plain(processes::too_many)),
    here(
        13,
        Setup::prepared(network::with_policy_plugin, network::some_pods_fail),
    ),
    here(14, Setup::plain(network::no_address_left)),
    here(
        15,
        Setup::prepared(crate::devices::device_group, devices::held_by_job),
    ),
    here(
        16,
        Setup::prepared(devices::with_device_host, devices::plugin_dies),
    ),
    here(
        17,
        Setup::prepared(devices::with_kubelet, devices::kubelet_does_not_register),
    ),
    here(18, Setup::plain(nomad::socket_is_gone)),
    here(19, Setup::in_swarm(swarm::has_a_clone)),
    here(20, Setup::plain(processes::children_are_killed)),
    here(21, Setup::plain(images::held_by_others)),
    elsewhere(
        22,
        "it changes the clock of the machine, which the guest alone may: tests/vm --only clock",
    ),
    here(23, Setup::plain(monitoring::link_is_slow)),
    here(24, Setup::plain(processes::was_killed_and_replaced)),
];

/// The incident with a number.
#[must_use]
pub fn find(number: u8) -> Option<ListedIncident> {
    INCIDENTS.into_iter().find(|listed| listed.number == number)
}

const fn here(number: u8, setup: Setup) -> ListedIncident {
    ListedIncident {
        number,
        place: Place::Here(setup),
        elsewhere: None,
    }
}

const fn elsewhere(number: u8, why: &'static str) -> ListedIncident {
    ListedIncident {
        number,
        place: Place::Elsewhere(why),
        elsewhere: None,
    }
}
