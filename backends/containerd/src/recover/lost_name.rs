//! A gateway that has lost its name, with the file in its state directory, and finds the objects that it made under it.
//!
//! They are known by its directories, which no other gateway uses: on disk, or in the spec of a container. Without its name it would
//! leave them alone as those of another gateway, hand out their ports and devices, and have orchestrators start them again.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use containerd_client::services::v1 as api;
use switchyard_core::id::TaskId;
use switchyard_core::{Error, Result};

use crate::base::fs::blocking;
use crate::base::layout::Layout;
use crate::record::INSTANCE;
use crate::recover::Recovery;

impl Recovery {
    /// Gives this gateway its name for good, before it uses it.
    ///
    /// # Errors
    /// `FailedPrecondition` if it has none, and containers were made with its directories under another one; those of storing it.
    pub(super) async fn settle_name(&self, containers: &[api::Container]) -> Result<()> {
        let name = Arc::clone(self.client.own_name());
        if name.is_settled() {
            return Ok(());
        }
        let reloaded = Arc::clone(&name);
        // Somebody may have given it back meanwhile.
        if blocking(move || reloaded.reload()).await? {
            return Ok(());
        }
        let made: Vec<_> = containers
            .iter()
            .filter_map(|container| {
                Some((container.labels.get(INSTANCE)?.clone(), container.clone()))
            })
            .collect();
        let layout = self.context.layout.clone();
        let former = blocking(move || Ok(former_names(&made, &layout))).await?;
        if !former.is_empty() {
            return Err(lost(&former));
        }
        blocking(move || name.settle()).await
    }
}

/// The names of the gateways that have made these containers with the directories of this layout. Blocks.
fn former_names(made: &[(String, api::Container)], layout: &Layout) -> BTreeSet<String> {
    let of_us = made
        .iter()
        .filter(|(_, container)| uses_directories(container, layout));
    of_us.map(|(name, _)| name.clone()).collect()
}

/// Returns whether a container has a directory of this layout, or its spec names one.
fn uses_directories(container: &api::Container, layout: &Layout) -> bool {
    let dirs = [
        layout.all_sandbox_state(),
        layout.all_task_state(),
        layout.all_sandbox_run(),
        layout.all_task_run(),
        layout.all_pins(),
    ];
    // Sandboxes and tasks have ids of the same form.
    if container.id.parse::<TaskId>().is_ok()
        && dirs.iter().any(|dir| dir.join(&container.id).exists())
    {
        return true;
    }
    let spec = container
        .spec
        .as_ref()
        .map(|spec| String::from_utf8_lossy(&spec.value));
    let names = |dir: &PathBuf| {
        spec.as_ref()
            .is_some_and(|spec| spec.contains(&format!("\"{}/", dir.display())))
    };
    dirs.iter().any(names)
}

fn lost(former: &BTreeSet<String>) -> Error {
    let names = former
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    let name = if former.len() == 1 { &names } else { "NAME" };
    Error::failed_precondition(format!(
        "the file `instance` in the state directory, with the name of this gateway, is lost, and containers that were made with its \
         directories are those of {names}: `switchyard recover --instance {name}` takes them back; with any other name they \
         are left alone for good"
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs;
    use std::path::Path;

    use prost_types::Any;

    use super::*;

    fn container(id: u8, spec: &str) -> api::Container {
        api::Container {
            id: TaskId::from_bytes([id; 32]).to_string(),
            labels: HashMap::from([(INSTANCE.to_owned(), "former".to_owned())]),
            spec: Some(Any {
                type_url: String::new(),
                value: spec.into(),
            }),
            ..Default::default()
        }
    }

    #[test]
    fn containers_of_a_lost_name_are_known_by_our_directories() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(&dir.path().join("state"), &dir.path().join("run"));
        let found = |containers: &[api::Container]| {
            let made: Vec<_> = containers
                .iter()
                .map(|container| ("former".to_owned(), container.clone()))
                .collect();
            former_names(&made, &layout)
        };
        let spec = |path: &Path| format!("{{\"source\":\"{}/x/hosts\"}}", path.display());
        // Another gateway may have its directories beside ours, or below them.
        let others = [
            dir.path().join("state2/sandboxes"),
            dir.path().join("state/two/sandboxes"),
        ];
        let of_others = [
            container(1, &spec(&others[0])),
            container(2, &spec(&others[1])),
            container(3, ""),
        ];
        assert_eq!(found(&of_others), BTreeSet::new());
        let ours = container(4, &spec(&layout.all_sandbox_state()));
        assert_eq!(
            found(&[of_others[0].clone(), ours]),
            BTreeSet::from(["former".to_owned()])
        );
        let pinned = container(5, "");
        fs::create_dir_all(layout.all_pins().join(&pinned.id)).unwrap();
        let former = found(&[pinned]);
        assert_eq!(former, BTreeSet::from(["former".to_owned()]));
        assert!(
            lost(&former)
                .to_string()
                .contains("`switchyard recover --instance former`")
        );
    }
}
