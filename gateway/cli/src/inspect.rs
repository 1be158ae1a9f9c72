//! `switchyard inspect`: all that is known of a sandbox or task, of any owner.

use std::process::ExitCode;

use clap::Args;
use http::{Method, StatusCode};
use jiff::Timestamp;
use switchyard_linux::report;
use switchyard_operator_api::text::{age, printable, size};
use switchyard_operator_api::{
    CommandView, ImageOfTaskView, InspectionView, MountView, ReservationView, UserView,
    WithheldValues,
};

use super::daemon::{DaemonError, Target, parse, send};
use crate::output::{Format, print, print_error, print_json};

/// Maximum number of objects of one command.
const OBJECTS: usize = 100;

#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    /// The objects: the id of a sandbox or task, the beginning of one, or a name as `switchyard ps` shows it.
    #[arg(required = true, value_name = "ID|NAME", num_args = 1..=OBJECTS)]
    names: Vec<String>,
    /// Show what may be secret too: the values of environment variables, labels and annotations, and the arguments of
    /// the command. For root alone; it is recorded in the audit log.
    #[arg(long)]
    env: bool,
    #[command(flatten)]
    target: Target,
}

/// Shows the objects that were found; exit status 1 if one was not, or if a name can mean several.
pub(super) async fn inspect(args: &InspectArgs) -> Result<ExitCode, DaemonError> {
    let mut found = Vec::new();
    let mut code = ExitCode::SUCCESS;
    for name in &args.names {
        match ask(args, name).await {
            Ok(view) => found.push(view),
            // The others can be shown.
            Err(error @ DaemonError::Message(_)) => {
                print_error(format!("switchyard: {}\n", report(&error)))?;
                code = ExitCode::FAILURE;
            }
            Err(error) => return Err(error),
        }
    }
    match args.target.output {
        Format::Json => print_json(&found)?,
        Format::Text => {
            let now = Timestamp::now();
            let texts: Vec<_> = found.iter().map(|view| shown(view, now)).collect();
            print(texts.join("\n"))?;
        }
    }
    Ok(code)
}

async fn ask(args: &InspectArgs, name: &str) -> Result<InspectionView, DaemonError> {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair("name", name);
    if args.env {
        query.append_pair("env", "true");
    }
    let path = format!("/v1/inspect?{}", query.finish());
    match send(&args.target.socket, Method::GET, &path).await {
        // The text says by itself what was not found.
        Err(DaemonError::Refused {
            status: StatusCode::NOT_FOUND | StatusCode::CONFLICT | StatusCode::BAD_REQUEST,
            text,
            ..
        }) => Err(DaemonError::Message(text)),
        answer => parse("/v1/inspect", &answer?),
    }
}

/// Lines with a word and its value.
struct Lines(String);

impl Lines {
    /// Adds a line, unless the value is empty.
    fn add(&mut self, word: &str, value: impl AsRef<str>) {
        let value = printable(value.as_ref());
        if !value.is_empty() {
            self.0.push_str(&format!("{word:<12} {value}\n"));
        }
    }

    /// Adds values on lines of their own.
    fn add_all(&mut self, word: &str, values: impl IntoIterator<Item = String>) {
        let mut word = word;
        for value in values {
            self.add(word, value);
            word = "";
        }
    }
}

fn shown(view: &InspectionView, now: Timestamp) -> String {
    let mut lines = Lines(String::new());
    add_identity(&mut lines, view);
    add_state(&mut lines, view, now);
    add_process(&mut lines, view);
    add_confinement(&mut lines, view);
    add_surroundings(&mut lines, view);
    lines.add_all("labels", values(&view.labels));
    lines.add_all("annotations", values(&view.annotations));
    if view.left_out > 0 {
        lines.add(
            "left out",
            format!(
                "{} entries: there are too many for an answer",
                view.left_out
            ),
        );
    }
    let missing = view
        .unavailable
        .as_ref()
        .map(|why| format!("the runtime reports nothing now: {why}"));
    lines.add("unavailable", missing.unwrap_or_default());
    if view.may_hold_more {
        lines.add(
            "may hold",
            "any device, and any processor exclusively: none of these is given out",
        );
    }
    lines.add("remedy", view.remedy.as_deref().unwrap_or_default());
    lines.0
}

fn add_identity(lines: &mut Lines, view: &InspectionView) {
    let known = |text: &'static str, value: &str| {
        if value.is_empty() {
            text.to_owned()
        } else {
            value.to_owned()
        }
    };
    let name = known("of an unknown name", &view.display_name);
    let owner = known("of an unknown owner", &view.owner);
    lines.add(&view.kind, format!("{name} ({owner})"));
    lines.add("id", &view.id);
    lines.add("name", &view.name);
    lines.add_all(
        "names",
        view.names
            .iter()
            .map(|(label, name)| format!("{label}={name}")),
    );
}

fn add_state(lines: &mut Lines, view: &InspectionView, now: Timestamp) {
    let exit = view
        .exit_code
        .map(|code| format!(", exit code {code}"))
        .unwrap_or_default();
    let process = view
        .pid
        .map(|pid| format!(", process {pid}"))
        .unwrap_or_default();
    let why = view
        .reason
        .as_ref()
        .map(|reason| format!(": {reason}"))
        .unwrap_or_default();
    lines.add("state", format!("{}{process}{exit}{why}", view.state));
    lines.add_all("held up by", view.blockers.iter().cloned());
    let slow = view.slow_log.as_ref();
    let slow = slow.map(|mount| format!("its output waits: the file system on {mount} is slower"));
    lines.add("slow log", slow.unwrap_or_default());
    let at = |time: &String| format!("{time} ({} ago)", age(time, now));
    let created = Some(&view.created_at).filter(|time| !time.is_empty());
    lines.add("created", created.map(at).unwrap_or_default());
    lines.add(
        "started",
        view.started_at.as_ref().map(at).unwrap_or_default(),
    );
    lines.add(
        "finished",
        view.finished_at.as_ref().map(at).unwrap_or_default(),
    );
}

fn add_process(lines: &mut Lines, view: &InspectionView) {
    let handler = if view.handler.is_empty() {
        "default"
    } else {
        &view.handler
    };
    let runtime = if view.runtime.is_empty() {
        String::new()
    } else {
        format!(", {}", view.runtime)
    };
    if view.remedy.is_none() {
        lines.add("runtime", format!("{handler}{runtime}"));
    }
    lines.add("sandbox", view.sandbox.as_deref().unwrap_or_default());
    lines.add_all(
        "tasks",
        view.tasks.iter().map(|(id, name)| format!("{id} {name}")),
    );
    lines.add_all("image", view.image.iter().flat_map(image_lines));
    lines.add_all("command", view.command.iter().flat_map(command_lines));
    lines.add(
        "user",
        view.user.as_ref().map(user_line).unwrap_or_default(),
    );
    lines.add_all("environment", values(&view.environment));
}

fn add_confinement(lines: &mut Lines, view: &InspectionView) {
    lines.add_all("mounts", view.mounts.iter().map(mount_line));
    lines.add_all(
        "limits",
        view.resources
            .iter()
            .map(|(name, limit)| format!("{name}={limit}")),
    );
    lines.add(
        "reserved",
        view.reserved
            .as_ref()
            .map(reservation_line)
            .unwrap_or_default(),
    );
    if let Some(security) = &view.security {
        let named = [
            ("readonly_rootfs", security.readonly_rootfs),
            ("no_new_privileges", security.no_new_privileges),
            ("seccomp", security.seccomp),
        ];
        let words = named
            .iter()
            .map(|(name, is_set)| format!("{name}={is_set}"));
        lines.add("security", words.collect::<Vec<_>>().join(" "));
        lines.add("apparmor", &security.apparmor);
        let capabilities = security
            .capabilities
            .iter()
            .map(|name| name.trim_start_matches("CAP_"));
        lines.add("capabilities", capabilities.collect::<Vec<_>>().join(" "));
    }
}

fn add_surroundings(lines: &mut Lines, view: &InspectionView) {
    let network = &view.network;
    // Of an object that cannot be read it is not known.
    if view.remedy.is_none() {
        let namespace = network.namespace.as_deref();
        lines.add(
            "network",
            namespace.unwrap_or("that of the host, or none any more"),
        );
    }
    let ips = network.ips.iter().map(ToString::to_string);
    lines.add("ips", ips.collect::<Vec<_>>().join(", "));
    lines.add("host ports", network.host_ports.join(", "));
    lines.add_all("devices", view.device_nodes.iter().cloned());
    let leases = view
        .leases
        .iter()
        .map(|lease| format!("{} {}", lease.token, lease.slots.join(", ")));
    lines.add_all("leases", leases);
    lines.add("cgroup", view.cgroup.as_deref().unwrap_or_default());
    lines.add("log", view.log.as_deref().unwrap_or_default());
}

fn reservation_line(reserved: &ReservationView) -> String {
    let ReservationView {
        cpu_milli,
        memory_bytes,
        exclusive_cpus,
    } = reserved;
    let exclusive = if *exclusive_cpus {
        ", exclusive processors"
    } else {
        ""
    };
    format!(
        "{cpu_milli} thousandths of a processor, {} of memory{exclusive}",
        size(*memory_bytes)
    )
}

fn image_lines(image: &ImageOfTaskView) -> Vec<String> {
    let ImageOfTaskView {
        name,
        reference,
        id,
        snapshotter,
        snapshot,
    } = image;
    let mut lines = vec![name.clone()];
    lines.extend((reference != name).then(|| reference.clone()));
    lines.push(id.clone());
    lines
        .extend((!snapshotter.is_empty()).then(|| format!("snapshot {snapshot} of {snapshotter}")));
    lines
}

fn command_lines(command: &CommandView) -> Vec<String> {
    let CommandView {
        program,
        arguments,
        values,
        directory,
        terminal,
    } = command;
    let rest = match (values, arguments) {
        (Some(values), _) => values.iter().map(|value| format!(" {value:?}")).collect(),
        (None, 0) => String::new(),
        (None, 1) => " (1 argument, withheld)".to_owned(),
        (None, count) => format!(" ({count} arguments, withheld)"),
    };
    let terminal = if *terminal { ", with a terminal" } else { "" };
    vec![
        format!("{program}{rest}"),
        format!("in {directory}{terminal}"),
    ]
}

fn user_line(user: &UserView) -> String {
    let groups: Vec<_> = user.groups.iter().map(ToString::to_string).collect();
    let groups = if groups.is_empty() {
        String::new()
    } else {
        format!(", groups {}", groups.join(" "))
    };
    format!("{}:{}{groups}", user.uid, user.gid)
}

fn mount_line(mount: &MountView) -> String {
    let MountView {
        source,
        target,
        file_system,
        options,
    } = mount;
    let file_system = if file_system.is_empty() {
        "bind"
    } else {
        file_system
    };
    let options = if options.is_empty() {
        String::new()
    } else {
        format!(" ({})", options.join(","))
    };
    format!("{target} <- {source} {file_system}{options}")
}

/// The names, with their values as far as they are not withheld.
fn values(values: &WithheldValues) -> Vec<String> {
    let line = |(name, value): (&String, &Option<String>)| match value {
        Some(value) => format!("{name}={value}"),
        None => name.clone(),
    };
    values.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use switchyard_operator_api::NetworkView;

    use super::*;

    #[test]
    fn task_is_shown_with_what_is_withheld() {
        let view = InspectionView {
            kind: "task".into(),
            id: "cd".repeat(32),
            owner: "nomad".into(),
            display_name: "shop/web (3a7c5f1e)".into(),
            state: "exited".into(),
            reason: Some("never started: no\u{1b}[2Jsuch program".into()),
            created_at: "2026-11-26T11:55:00Z".into(),
            exit_code: Some(128),
            command: Some(CommandView {
                program: "sh".into(),
                arguments: 2,
                ..CommandView::default()
            }),
            environment: WithheldValues::from([
                ("PATH".into(), None),
                ("TOKEN".into(), Some("x".into())),
            ]),
            left_out: 3,
            blockers: vec!["process 812 (java) waits".into(), "process 813".into()],
            slow_log: Some("/var/log".into()),
            ..InspectionView::default()
        };
        let text = shown(&view, "2026-11-26T12:00:00Z".parse().unwrap());
        for line in [
            "task         shop/web (3a7c5f1e) (nomad)\n",
            "state        exited, exit code 128: never started: no [2Jsuch program\n",
            "held up by   process 812 (java) waits\n             process 813\n",
            "slow log     its output waits: the file system on /var/log is slower\n",
            "created      2026-11-26T11:55:00Z (5m ago)\n",
            "command      sh (2 arguments, withheld)\n",
            "environment  PATH\n             TOKEN=x\n",
            "left out     3 entries",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains("labels"), "{text}");
    }

    #[test]
    fn object_that_cannot_be_read_is_shown_with_what_is_held_for_it_and_what_to_do() {
        let view = InspectionView {
            kind: "task".into(),
            id: "cd".repeat(32),
            owner: "nomad".into(),
            state: "unreadable".into(),
            reason: Some("of version 9".into()),
            remedy: Some("see docs/alerts.md".into()),
            may_hold_more: true,
            network: NetworkView {
                host_ports: vec!["8080/tcp".into()],
                ..NetworkView::default()
            },
            ..InspectionView::default()
        };
        let text = shown(&view, "2026-11-26T12:00:00Z".parse().unwrap());
        let expected = format!(
            "\
task         of an unknown name (nomad)
id           {}
state        unreadable: of version 9
host ports   8080/tcp
may hold     any device, and any processor exclusively: none of these is given out
remedy       see docs/alerts.md
",
            view.id
        );
        assert_eq!(text, expected);
    }
}
