//! The OCI spec of a task as it is shown to people.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::record::StagedRecord;

/// The stored spec of a task, in which mounts that were staged for the runtime have the paths of the host where their
/// files are: nothing is in the staging directory once the container is created.
pub(super) fn shown(mut spec: Value, stage: &Path, staged: &[StagedRecord]) -> Value {
    let sources: HashMap<String, String> = staged
        .iter()
        .filter_map(StagedRecord::on_host)
        .map(|(at, path)| {
            (
                stage.join(at).display().to_string(),
                path.display().to_string(),
            )
        })
        .collect();
    let mounts = spec.get_mut("mounts").and_then(Value::as_array_mut);
    for mount in mounts.into_iter().flatten() {
        let staged = mount.get("source").and_then(Value::as_str);
        if let Some(source) = staged.and_then(|source| sources.get(source)) {
            mount["source"] = json!(source);
        }
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_mounts_are_shown_with_their_paths_on_the_host() {
        let staged = [
            StagedRecord::Path {
                at: "volume-0".to_owned(),
                source: "/state/volumes/0".into(),
            },
            StagedRecord::Beneath {
                at: "1".to_owned(),
                root: "/alloc".into(),
                path: "local/x".into(),
                shared: false,
            },
            StagedRecord::Image {
                at: "2".to_owned(),
                key: "k".to_owned(),
                top: None,
            },
        ];
        let spec = |sources: [&str; 5]| {
            let mounts = sources.map(|source| json!({ "destination": "/d", "source": source }));
            json!({ "ociVersion": "1.0.2", "mounts": mounts })
        };
        let stored = spec(["/stage/volume-0", "/stage/1", "/stage/2", "/srv", "proc"]);
        let expected = spec([
            "/state/volumes/0",
            "/alloc/local/x",
            "/stage/2",
            "/srv",
            "proc",
        ]);
        assert_eq!(shown(stored, Path::new("/stage"), &staged), expected);
        for odd in [
            json!({}),
            json!({ "mounts": null }),
            json!({ "mounts": [1] }),
        ] {
            assert_eq!(shown(odd.clone(), Path::new("/stage"), &staged), odd);
        }
    }
}
