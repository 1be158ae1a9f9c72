//! Pulls of images that nobody has seen before: content is shared between containerd's namespaces.

use std::time::Duration;

use switchyard_tests::host::random_bytes;
use switchyard_tests::image::{ImageBuilder, random_layer};

use crate::Failure;
use crate::pods::Pair;
use crate::stand::Stand;

/// One pull of each side, each of an image of its own. Who comes first alternates.
pub(crate) async fn round(
    stand: &mut Stand,
    round: u32,
    layers: usize,
    layer_mib: usize,
) -> Result<Pair<Duration>, Failure> {
    let theirs = push(stand, "theirs", round, layers, layer_mib);
    let ours = push(stand, "ours", round, layers, layer_mib);
    let pair = if round.is_multiple_of(2) {
        let theirs = stand.theirs.pull(&theirs).await?;
        Pair { theirs, ours: stand.ours.pull(&ours).await? }
    } else {
        let ours = stand.ours.pull(&ours).await?;
        Pair { theirs: stand.theirs.pull(&theirs).await?, ours }
    };
    for (side, reference) in [(&mut stand.theirs, &theirs), (&mut stand.ours, &ours)] {
        if !side.has_image(reference).await? {
            return Err(format!("{} does not have {reference} after its pull", side.name).into());
        }
        side.remove_image(reference).await?;
    }
    Ok(pair)
}

/// Makes an image of random layers and pushes it; returns its reference.
fn push(stand: &Stand, name: &str, round: u32, layers: usize, layer_mib: usize) -> String {
    let mut image = ImageBuilder::new().cmd(&["/none"]);
    for _ in 0..layers {
        image = image.layer(random_layer(layer_mib << 20, u64::from_le_bytes(random_bytes())));
    }
    let tag = format!("bench/{name}:{round}");
    stand.registry.push(&tag, &image.build());
    stand.registry.reference(&tag)
}
