//! Properties that hold for any bytes that a kubelet sends. Called only by fuzz targets and tests.

use std::collections::BTreeSet;

use prost::Message;
use switchyard_core::device::SlotPlacement;
use switchyard_core::id::{SLOT_ID_MAX, SlotId};
use switchyard_core::{Error, ErrorKind};
use switchyard_proto::kubelet::device_plugin::v1beta1;
use switchyard_proto::kubelet::pod_resources::v1;

use crate::listing::{Listing, Offer, Slot};
use crate::preference::prefer;
use crate::{from_proto, pod_resources};

const RESOURCE: &str = "acme.com/tpu";

/// The slots of the test resource, with their NUMA nodes.
const SLOTS: [(&str, Option<u32>); 5] = [
    ("a::0", Some(0)),
    ("a::1", Some(0)),
    ("b::0", Some(1)),
    ("b::1", Some(1)),
    ("c", None),
];

/// Decodes the bytes as each of the request messages: a request is refused or names existing slots, and a
/// preferred allocation is one that the kubelet may take.
///
/// # Panics
/// If a property does not hold.
pub fn messages(data: &[u8]) {
    let slots = SLOTS.map(|(id, numa_node)| {
        (
            id,
            Slot {
                healthy: true,
                numa_node,
            },
        )
    });
    let placement = if data.len().is_multiple_of(2) {
        SlotPlacement::Packed
    } else {
        SlotPlacement::Spread
    };
    let (listing, _) = Listing::default().after(&Offer {
        slots: slots.into(),
        placement,
    });
    if let Ok(request) = v1beta1::AllocateRequest::decode(data) {
        match from_proto::allocate(RESOURCE, &listing, request) {
            Ok(containers) => containers.iter().for_each(|slots| are_slots(slots)),
            Err(error) => is_refusal(&error),
        }
    }
    if let Ok(request) = v1beta1::PreStartContainerRequest::decode(data) {
        match from_proto::pre_start(RESOURCE, &listing, request) {
            Ok(slots) => are_slots(&slots),
            Err(error) => is_refusal(&error),
        }
    }
    if let Ok(request) = v1beta1::PreferredAllocationRequest::decode(data) {
        for one in request
            .container_requests
            .into_iter()
            .take(from_proto::CONTAINERS_MAX)
        {
            let question = from_proto::preference_request(one);
            let preferred = prefer(&listing, &question);
            let must = question.required.intersection(&question.available).count();
            assert_eq!(
                preferred.len(),
                question.size.min(question.available.len()).max(must)
            );
            assert!(preferred.iter().all(|id| question.available.contains(id)));
        }
    }
    if let Ok(list) = v1::ListPodResourcesResponse::decode(data) {
        drop(pod_resources::dynamic(&list));
        let listed = pod_resources::slots(list, &[RESOURCE.to_owned()].into());
        assert!(
            listed
                .iter()
                .all(|id| (1..=SLOT_ID_MAX).contains(&id.as_str().len()))
        );
    }
}

fn are_slots(slots: &[SlotId]) {
    let distinct: BTreeSet<_> = slots.iter().collect();
    assert_eq!(distinct.len(), slots.len());
    assert!(
        !slots.is_empty()
            && slots
                .iter()
                .all(|slot| SLOTS.iter().any(|(id, _)| slot == id))
    );
}

fn is_refusal(error: &Error) {
    assert!(
        matches!(
            error.kind(),
            ErrorKind::NotFound | ErrorKind::InvalidArgument
        ),
        "{error:?}"
    );
    assert!(error.to_string().len() < 1000, "{error}");
}
