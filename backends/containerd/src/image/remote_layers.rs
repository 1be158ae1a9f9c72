//! Labels with which a remote snapshotter finds the layers of an image itself, as stargz, SOCI, nydus and overlaybd do.
//! "Remote snapshotter" is containerd's word for one that provides layers which were not downloaded. Pure.
//!
//! Such a snapshotter reads the labels of a snapshot when it is prepared, and answers `AlreadyExists` if it provides the
//! layer: then the snapshot of that name exists, and the layer is neither downloaded nor unpacked. The labels and their
//! meaning are containerd's, which its CRI plugin sets if `disable_snapshot_annotations` is `false`.

use switchyard_core::image::ImageReference;
use switchyard_registry::{Descriptor, Digest, SNAPSHOT_ANNOTATION};

use super::content::Labels;
use crate::base::config::OF_CONTAINERD;

/// The name of the image, as it is pulled.
const IMAGE_REF: &str = "containerd.io/snapshot/cri.image-ref";
/// The digest of the image's manifest.
const MANIFEST: &str = "containerd.io/snapshot/cri.manifest-digest";
/// The digest of the layer.
const LAYER: &str = "containerd.io/snapshot/cri.layer-digest";
/// The digests of this layer and of those above it, with commas between them: as many as fit a label.
const LAYERS: &str = "containerd.io/snapshot/cri.image-layers";

/// Beginnings, after [`SNAPSHOT_ANNOTATION`], of the keys that an image cannot set: those above, and the ids that a snapshotter
/// gives the files of a layer to.
const NOT_OF_IMAGES: [&str; 3] = ["cri.", "uidmapping", "gidmapping"];

/// The limit of containerd for key and value of a label together, in bytes.
const MAX_LABEL: usize = 4096;

/// An image in a registry whose layers a remote snapshotter may provide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteImage {
    reference: String,
    manifest: Digest,
}

impl RemoteImage {
    /// The image with this name and manifest; `None` if the snapshotter is one of containerd's own.
    pub(crate) fn of(
        snapshotter: &str,
        reference: &ImageReference,
        manifest: &Digest,
    ) -> Option<Self> {
        (!OF_CONTAINERD.contains(&snapshotter)).then(|| Self {
            reference: reference.to_string(),
            manifest: manifest.clone(),
        })
    }

    /// The labels of the snapshot of the layer `number` of these. What containerd would refuse because of its length is left
    /// out.
    pub(crate) fn labels(&self, layers: &[Descriptor], number: usize) -> Labels {
        let layer = &layers[number];
        let mut labels: Labels = layer
            .annotations
            .iter()
            .filter(|(key, _)| may_be_of_image(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        labels.extend([
            (IMAGE_REF.to_owned(), self.reference.clone()),
            (MANIFEST.to_owned(), self.manifest.to_string()),
            (LAYER.to_owned(), layer.digest.to_string()),
            (LAYERS.to_owned(), joined(&layers[number..])),
        ]);
        labels.retain(|key, value| key.len() + value.len() <= MAX_LABEL);
        labels
    }
}

fn may_be_of_image(key: &str) -> bool {
    key.strip_prefix(SNAPSHOT_ANNOTATION)
        .is_some_and(|rest| !NOT_OF_IMAGES.iter().any(|not| rest.starts_with(not)))
}

/// The digests of these layers as the value of [`LAYERS`].
fn joined(layers: &[Descriptor]) -> String {
    let mut value = String::new();
    for layer in layers {
        let digest = layer.digest.to_string();
        let separator = usize::from(!value.is_empty());
        if LAYERS.len() + value.len() + separator + digest.len() > MAX_LABEL {
            break;
        }
        if separator > 0 {
            value.push(',');
        }
        value.push_str(&digest);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(count: usize) -> Vec<Descriptor> {
        (0..count)
            .map(|number| Descriptor::new("x", Digest::sha256(number.to_string().as_bytes()), 1))
            .collect()
    }

    fn image() -> RemoteImage {
        let reference = "registry.test/app:1".parse().unwrap();
        RemoteImage::of("stargz", &reference, &Digest::sha256(b"manifest")).unwrap()
    }

    #[test]
    fn containerds_own_snapshotters_get_no_labels_and_all_others_do() {
        let reference: ImageReference = "registry.test/app:1".parse().unwrap();
        let remote =
            |name| RemoteImage::of(name, &reference, &Digest::sha256(b"manifest")).is_some();
        for own in OF_CONTAINERD {
            assert!(!remote(own), "{own}");
        }
        for other in ["stargz", "soci", "nydus", "overlaybd", "fuse-overlayfs", ""] {
            assert!(remote(other), "{other:?}");
        }
    }

    #[test]
    fn labels_name_the_image_and_each_layer_with_those_above_it() {
        let layers = layers(3);
        for (number, layer) in layers.iter().enumerate() {
            let above: Vec<_> = layers[number..]
                .iter()
                .map(|layer| layer.digest.to_string())
                .collect();
            let expected = Labels::from([
                (IMAGE_REF.to_owned(), "registry.test/app:1".to_owned()),
                (MANIFEST.to_owned(), Digest::sha256(b"manifest").to_string()),
                (LAYER.to_owned(), layer.digest.to_string()),
                (LAYERS.to_owned(), above.join(",")),
            ]);
            assert_eq!(image().labels(&layers, number), expected, "{number}");
        }
    }

    #[test]
    fn long_list_of_layers_has_whole_digests_and_fits_a_label() {
        for count in [1, 56, 57, 500] {
            let layers = layers(count);
            let labels = image().labels(&layers, 0);
            let listed: Vec<_> = labels[LAYERS].split(',').collect();
            assert!(LAYERS.len() + labels[LAYERS].len() <= MAX_LABEL, "{count}");
            // 71 bytes each, and a comma between them, beside a key of 39.
            assert_eq!(listed.len(), count.min(56), "{count}");
            for (listed, layer) in listed.iter().zip(&layers) {
                assert_eq!(*listed, layer.digest.to_string());
            }
        }
    }

    #[test]
    fn annotations_of_a_layer_become_labels_unless_they_are_the_nodes() {
        let long = "x".repeat(MAX_LABEL);
        let cases = [
            ("stargz/toc.digest", "sha256:1", true),
            ("nydus-bootstrap", "true", true),
            ("overlaybd/blob-digest", "sha256:2", true),
            ("remote/soci.index.digest", "sha256:3", true),
            ("uidmapping", "0:100000:65536", false),
            ("gidmapping", "0:100000:65536", false),
            ("cri.image-ref", "other.test/app:1", false),
            ("cri.unknown", "x", false),
            ("too-long", long.as_str(), false),
        ];
        for (rest, value, kept) in cases {
            let mut layers = layers(1);
            let key = format!("{SNAPSHOT_ANNOTATION}{rest}");
            layers[0].annotations = [(key.clone(), value.to_owned())].into();
            let labels = image().labels(&layers, 0);
            assert_eq!(
                labels.get(&key).is_some_and(|label| label == value),
                kept,
                "{rest}"
            );
            assert_eq!(labels.len(), 4 + usize::from(kept), "{rest}");
        }
        let mut layers = layers(1);
        layers[0].annotations = [("switchyard.io/unsynced".to_owned(), "x".to_owned())].into();
        assert_eq!(image().labels(&layers, 0).len(), 4);
    }
}
