//! `switchyard volume`: the named volumes of the node.

use clap::{Args, Subcommand};
use http::{Method, StatusCode};
use jiff::Timestamp;
use switchyard_core::spec::is_volume_name;
use switchyard_operator_api::VolumeView;
use switchyard_operator_api::text::{age, short};

use super::daemon::{DaemonError, Target, ask, send};
use super::watch::{ListArgs, OWNERS};
use crate::output::{Format, print, print_json, table};

#[derive(Debug, Subcommand)]
pub(super) enum VolumeCommand {
    /// List named volumes, with the tasks that have them.
    Ls(ListArgs),
    /// Remove named volumes with all their content. One that a task has is not removed.
    Rm(RemoveArgs),
}

#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    /// Owner of the volumes.
    #[arg(long, value_name = "OWNER", value_parser = OWNERS, default_value = "swarm")]
    owner: String,
    /// The names, as `switchyard volume ls` shows them.
    #[arg(required = true, value_name = "NAME", value_parser = volume_name)]
    names: Vec<String>,
    #[command(flatten)]
    target: Target,
}

fn volume_name(text: &str) -> Result<String, String> {
    let why = "a name begins with a letter or a digit, and has these, \"_\", \".\" and \"-\"";
    is_volume_name(text)
        .then(|| text.to_owned())
        .ok_or_else(|| why.to_owned())
}

/// Lists or removes volumes.
pub(super) async fn volumes(command: &VolumeCommand) -> Result<(), DaemonError> {
    match command {
        VolumeCommand::Ls(args) => {
            let path = args.path("/v1/volumes");
            let asked = async || ask::<Vec<VolumeView>>(&args.watch.target, &path).await;
            args.watch
                .show(asked, |volumes| shown(volumes, Timestamp::now()))
                .await
        }
        VolumeCommand::Rm(args) => remove(args).await,
    }
}

/// Removes volumes in their order, until one cannot be removed.
async fn remove(
    RemoveArgs {
        owner,
        names,
        target,
    }: &RemoveArgs,
) -> Result<(), DaemonError> {
    for name in names {
        let path = format!("/v1/volumes/{owner}/{name}");
        match send(&target.socket, Method::DELETE, &path).await {
            Ok(_) => {}
            // The daemon's words name the volume.
            Err(DaemonError::Refused {
                status: StatusCode::NOT_FOUND | StatusCode::CONFLICT,
                text,
                ..
            }) if !text.is_empty() => {
                return Err(DaemonError::Message(text));
            }
            Err(error) => return Err(error),
        }
        if target.output == Format::Text {
            print(format!("removed {name}\n"))?;
        }
    }
    if target.output == Format::Json {
        print_json(&serde_json::json!({ "removed": names }))?;
    }
    Ok(())
}

fn shown(volumes: &[VolumeView], now: Timestamp) -> String {
    let row = |volume: &VolumeView| {
        let VolumeView {
            owner,
            name,
            created_at,
            tasks,
        } = volume;
        let users: Vec<String> = tasks.iter().map(|task| short(task)).collect();
        let age = created_at
            .as_ref()
            .map_or_else(|| "-".to_owned(), |at| age(at, now));
        let users = if users.is_empty() {
            "-".to_owned()
        } else {
            users.join(" ")
        };
        [owner.clone(), name.clone(), age, users]
    };
    table(
        ["OWNER", "NAME", "AGE", "TASKS"],
        &volumes.iter().map(row).collect::<Vec<_>>(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_is_shown_with_the_tasks_that_have_it() {
        let volume = |name: &str, tasks: &[&str]| VolumeView {
            owner: "swarm".into(),
            name: name.into(),
            created_at: Some("2026-11-23T12:00:00Z".into()),
            tasks: tasks.iter().map(|task| task.repeat(32)).collect(),
        };
        let volumes = [volume("data", &["ab", "cd"]), volume("unused", &[])];
        let expected = "\
OWNER  NAME    AGE  TASKS
swarm  data    3d   ababababababa cdcdcdcdcdcdc
swarm  unused  3d   -
";
        assert_eq!(
            shown(&volumes, "2026-11-26T12:00:00Z".parse().unwrap()),
            expected
        );
    }

    #[test]
    fn names_are_no_paths() {
        assert_eq!(volume_name("a.b-c_d").as_deref(), Ok("a.b-c_d"));
        for wrong in ["", "..", "a/b", "../x", "a?b", "%2e"] {
            assert!(volume_name(wrong).is_err(), "{wrong}");
        }
    }
}
