//! Converts and checks the kubelet's requests for slots. A whole request is checked before anything is done.

use std::collections::BTreeSet;

use switchyard_core::device::OFFERED_SLOT_ID_MAX;
use switchyard_core::id::SlotId;
use switchyard_core::ledger::LEASE_SLOTS_MAX;
use switchyard_core::{Error, Result};
use switchyard_proto::kubelet::device_plugin::v1beta1;

use crate::listing::Listing;
use crate::preference::PreferenceRequest;

/// The most containers in one Allocate call. Kubelets send one.
pub(crate) const CONTAINERS_MAX: usize = 64;

/// The slots that each container of an Allocate call asks for.
pub(crate) fn allocate(
    resource: &str,
    listing: &Listing,
    request: v1beta1::AllocateRequest,
) -> Result<Vec<Vec<SlotId>>> {
    let v1beta1::AllocateRequest { container_requests } = request;
    if container_requests.len() > CONTAINERS_MAX {
        let why = format!(
            "{} containers, but at most {CONTAINERS_MAX} in one call",
            container_requests.len()
        );
        return Err(Error::invalid("container_requests", why));
    }
    let containers: Vec<Vec<String>> = container_requests
        .into_iter()
        .map(|v1beta1::ContainerAllocateRequest { devices_ids }| devices_ids)
        .collect();
    slots(resource, listing, &containers)
}

/// The slots of a container that is about to be started.
pub(crate) fn pre_start(
    resource: &str,
    listing: &Listing,
    request: v1beta1::PreStartContainerRequest,
) -> Result<Vec<SlotId>> {
    let v1beta1::PreStartContainerRequest { devices_ids } = request;
    Ok(slots(resource, listing, &[devices_ids])?.concat())
}

/// Converts the request for a preferred allocation of one container. Texts that are not slot ids are left out: they were
/// never offered.
pub(crate) fn preference_request(
    request: v1beta1::ContainerPreferredAllocationRequest,
) -> PreferenceRequest {
    let v1beta1::ContainerPreferredAllocationRequest {
        available_device_i_ds,
        must_include_device_i_ds,
        allocation_size,
    } = request;
    PreferenceRequest {
        available: available_device_i_ds
            .into_iter()
            .flat_map(SlotId::new)
            .collect(),
        required: must_include_device_i_ds
            .into_iter()
            .flat_map(SlotId::new)
            .collect(),
        size: usize::try_from(allocation_size).unwrap_or_default(),
    }
}

/// The slots of each container. Refuses too many slots, no slots, a slot that is named twice, and a slot that the
/// resource does not have.
fn slots(
    resource: &str,
    listing: &Listing,
    containers: &[Vec<String>],
) -> Result<Vec<Vec<SlotId>>> {
    let count = containers.iter().map(Vec::len).sum::<usize>();
    if count > LEASE_SLOTS_MAX {
        let why =
            format!("{count} devices of {resource}, but at most {LEASE_SLOTS_MAX} in one call");
        return Err(Error::invalid("devices_ids", why));
    }
    if containers.iter().any(Vec::is_empty) {
        return Err(Error::invalid(
            "devices_ids",
            format!("no device of {resource} is named"),
        ));
    }
    let mut seen = BTreeSet::new();
    let mut slot = |id: &String| {
        let offered = SlotId::new(id.as_str())
            .ok()
            .filter(|slot| listing.get(slot.as_str()).is_some());
        let offered = offered.ok_or_else(|| {
            let text = format!(
                "{resource} has no device {}: it was never offered",
                quoted(id)
            );
            Error::not_found(text)
        })?;
        if !seen.insert(offered.clone()) {
            return Err(Error::invalid(
                "devices_ids",
                format!("{} is named twice", quoted(id)),
            ));
        }
        Ok(offered)
    };
    containers
        .iter()
        .map(|ids| ids.iter().map(&mut slot).collect())
        .collect()
}

/// An untrusted id, quoted for a message and truncated when long.
fn quoted(id: &str) -> String {
    match id.char_indices().nth(OFFERED_SLOT_ID_MAX) {
        Some((end, _)) => format!("{:?}…", &id[..end]),
        None => format!("{id:?}"),
    }
}

#[cfg(test)]
mod tests {
    use switchyard_core::ErrorKind;

    use super::*;
    use crate::listing::{Offer, Slot};

    fn listing(count: usize) -> Listing {
        let slot = Slot {
            healthy: true,
            numa_node: None,
        };
        let ids: Vec<String> = (0..count).map(|number| format!("tpu-{number}")).collect();
        let slots = ids.iter().map(|id| (id.as_str(), slot)).collect();
        Listing::default()
            .after(&Offer {
                slots,
                ..Offer::default()
            })
            .0
    }

    #[track_caller]
    fn check_refused(containers: &[&[&str]], kind: ErrorKind, text: &str) {
        let containers = containers
            .iter()
            .map(|ids| v1beta1::ContainerAllocateRequest {
                devices_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            });
        let request = v1beta1::AllocateRequest {
            container_requests: containers.collect(),
        };
        let error = allocate("acme.com/tpu", &listing(2000), request).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text), "{error}");
        assert!(error.to_string().len() < 500, "{error}");
    }

    #[test]
    fn what_is_unknown_doubled_or_too_much_is_refused() {
        check_refused(
            &[&["tpu-1", "gpu-1"]],
            ErrorKind::NotFound,
            "acme.com/tpu has no device \"gpu-1\"",
        );
        check_refused(&[&[&"ü".repeat(100_000)]], ErrorKind::NotFound, "…");
        check_refused(
            &[&["tpu-1", "tpu-1"]],
            ErrorKind::InvalidArgument,
            "named twice",
        );
        check_refused(
            &[&["tpu-1"], &["tpu-1"]],
            ErrorKind::InvalidArgument,
            "named twice",
        );
        check_refused(&[&["tpu-1"], &[]], ErrorKind::InvalidArgument, "no device");
        check_refused(
            &[&["x"; 10_000]],
            ErrorKind::InvalidArgument,
            "10000 devices",
        );
        check_refused(
            &[["tpu-1"].as_slice(); 65],
            ErrorKind::InvalidArgument,
            "65 containers",
        );
    }

    #[test]
    fn a_size_that_makes_no_sense_is_none() {
        let request = v1beta1::ContainerPreferredAllocationRequest {
            available_device_i_ds: vec!["b".to_owned(), "a".to_owned(), "b".to_owned()],
            must_include_device_i_ds: Vec::new(),
            allocation_size: -7,
        };
        let question = preference_request(request);
        assert_eq!((question.size, question.available.len()), (0, 2));
    }
}
