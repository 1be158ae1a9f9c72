//! `switchyard ps`: the sandboxes and tasks of all owners.

use clap::Args;
use jiff::Timestamp;
use switchyard_operator_api::text::{age, short, short_reference};
use switchyard_operator_api::{Objects, SandboxView, TaskView, UnreadableView};

use super::daemon::{DaemonError, ask};
use super::watch::ListArgs;
use crate::output::table;

/// The states of sandboxes and tasks.
const STATES: [&str; 11] = [
    "created",
    "starting",
    "unattended",
    "running",
    "ready",
    "stopping",
    "stopped",
    "exited",
    "removing",
    "unknown",
    UNREADABLE,
];

/// The word for objects that cannot be read, which have no other state.
const UNREADABLE: &str = "unreadable";

#[derive(Debug, Args)]
pub(super) struct PsArgs {
    #[command(flatten)]
    list: ListArgs,
    /// Only those in one state.
    #[arg(long, value_name = "STATE", value_parser = STATES)]
    state: Option<String>,
}

/// Lists sandboxes and tasks.
pub(super) async fn ps(args: &PsArgs) -> Result<(), DaemonError> {
    let path = args.list.path("/v1/objects");
    let watch = &args.list.watch;
    let asked = async || {
        let mut objects: Objects = ask(&watch.target, &path).await?;
        if let Some(state) = &args.state {
            objects.sandboxes.retain(|sandbox| sandbox.state == *state);
            objects.tasks.retain(|task| task.state == *state);
            objects.unreadable.retain(|_| state == UNREADABLE);
        }
        Ok(objects)
    };
    watch
        .show(asked, |objects| shown(objects, Timestamp::now()))
        .await
}

fn shown(objects: &Objects, now: Timestamp) -> String {
    let sandboxes: Vec<_> = objects
        .sandboxes
        .iter()
        .map(|sandbox| sandbox_row(sandbox, now))
        .collect();
    let tasks: Vec<_> = objects
        .tasks
        .iter()
        .map(|task| task_row(task, now))
        .collect();
    let mut text = table(
        ["SANDBOX", "OWNER", "NAME", "STATE", "AGE", "IP"],
        &sandboxes,
    );
    text.push('\n');
    text.push_str(&table(
        ["TASK", "OWNER", "NAME", "STATE", "AGE", "IMAGE"],
        &tasks,
    ));
    if !objects.unreadable.is_empty() {
        let unreadable: Vec<_> = objects.unreadable.iter().map(unreadable_row).collect();
        text.push('\n');
        text.push_str(&table(
            ["CONTAINER", "OWNER", "NAME", "STATE", "KIND", "REASON"],
            &unreadable,
        ));
    }
    text
}

/// With the whole id: the container is removed by it.
fn unreadable_row(held: &UnreadableView) -> [String; 6] {
    let known = |text: &str| {
        if text.is_empty() {
            "unknown".to_owned()
        } else {
            text.to_owned()
        }
    };
    [
        held.id.clone(),
        known(&held.owner),
        known(&held.name),
        UNREADABLE.to_owned(),
        held.kind.clone(),
        held.reason.clone(),
    ]
}

fn sandbox_row(sandbox: &SandboxView, now: Timestamp) -> [String; 6] {
    let ips: Vec<_> = sandbox.ips.iter().map(ToString::to_string).collect();
    [
        short(&sandbox.id),
        sandbox.owner.clone(),
        sandbox.display_name.clone(),
        sandbox.state.clone(),
        age(&sandbox.created_at, now),
        ips.join(","),
    ]
}

fn task_row(task: &TaskView, now: Timestamp) -> [String; 6] {
    let state = match task.exit_code {
        Some(code) => format!("{} ({code})", task.state),
        None => task.state.clone(),
    };
    [
        short(&task.id),
        task.owner.clone(),
        task.display_name.clone(),
        state,
        age(&task.created_at, now),
        short_reference(task.names.get("image").unwrap_or(&task.image)),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn tables_fit_a_common_terminal() {
        let objects = Objects {
            sandboxes: vec![SandboxView {
                id: "ab".repeat(32),
                owner: "kubernetes".into(),
                name: "web-5d8f7_shop_u1_0".into(),
                display_name: "shop/web-5d8f7".into(),
                names: BTreeMap::new(),
                state: "ready".into(),
                handler: String::new(),
                ips: vec!["10.88.0.12".parse().unwrap()],
                created_at: "2026-11-23T12:00:00Z".into(),
            }],
            tasks: vec![TaskView {
                id: "cd".repeat(32),
                sandbox: "ab".repeat(32),
                owner: "kubernetes".into(),
                name: "nginx_0".into(),
                display_name: "shop/web-5d8f7/nginx".into(),
                names: BTreeMap::from([(
                    "image".to_owned(),
                    "docker.io/library/nginx:1".to_owned(),
                )]),
                state: "exited".into(),
                image: format!("docker.io/library/nginx@sha256:{}", "0".repeat(64)),
                pid: None,
                exit_code: Some(3),
                created_at: "2026-11-26T11:55:00Z".into(),
            }],
            unreadable: Vec::new(),
        };
        let text = shown(&objects, "2026-11-26T12:00:00Z".parse().unwrap());
        let expected = "\
SANDBOX        OWNER       NAME            STATE  AGE  IP
ababababababa  kubernetes  shop/web-5d8f7  ready  3d   10.88.0.12

TASK           OWNER       NAME                  STATE       AGE  IMAGE
cdcdcdcdcdcdc  kubernetes  shop/web-5d8f7/nginx  exited (3)  5m   nginx:1
";
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }

    #[test]
    fn what_cannot_be_read_is_listed_by_its_whole_id() {
        let held = UnreadableView {
            id: "ab".repeat(32),
            kind: "sandbox".into(),
            owner: String::new(),
            name: "web".into(),
            reason: "of version 9".into(),
        };
        let objects = Objects {
            unreadable: vec![held],
            ..Objects::default()
        };
        let text = shown(&objects, "2026-11-26T12:00:00Z".parse().unwrap());
        let last = text.lines().last().unwrap();
        let words: Vec<_> = last.split_whitespace().collect();
        let id = "ab".repeat(32);
        let expected = [
            id.as_str(),
            "unknown",
            "web",
            "unreadable",
            "sandbox",
            "of",
            "version",
            "9",
        ];
        assert_eq!(words, expected, "{text}");
    }
}
