//! The process of an exec: the main process of the task's stored spec with another command line.

use serde_json::{Map, Value, json};
use switchyard_core::spec::ExecSpec;
use switchyard_core::{Error, Result};

use crate::environment::{Environment, checked_command, checked_directory};

/// The process of `exec`, for containerd's `Tasks.Exec` or `runc exec --process`, from `main`, the `process`
/// of the task's spec.
///
/// User, capabilities, limits, profiles and labels stay those of the main process, as do fields that this
/// crate does not know: a runtime uses such a process as it is and adds no defaults.
///
/// # Errors
/// `InvalidArgument`, naming `command`, `cwd` or `env`; `Internal` if `main` is not a process.
pub fn exec_process(main: &Value, exec: &ExecSpec, warnings: &mut Vec<String>) -> Result<Value> {
    let ExecSpec {
        command,
        tty,
        size,
        stdin: _,
        env,
        cwd,
        drain: _,
    } = exec;
    let mut process: Map<String, Value> = main
        .as_object()
        .cloned()
        .ok_or_else(|| Error::internal("the stored spec of the task has no process"))?;
    let lines = process
        .get("env")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    let mut environment = Environment::from_lines(lines.iter().filter_map(Value::as_str));
    environment.assign(env, warnings)?;
    if *tty {
        environment.set_default("TERM", "xterm");
    }
    process.insert(
        "args".to_owned(),
        checked_command("command", command.clone())?.into(),
    );
    process.insert("env".to_owned(), environment.into_lines().into());
    process.insert("terminal".to_owned(), (*tty).into());
    // This is the size of the main process's terminal.
    process.remove("consoleSize");
    if let Some((width, height)) = size.filter(|_| *tty) {
        process.insert(
            "consoleSize".to_owned(),
            json!({ "height": height, "width": width }),
        );
    }
    if let Some(cwd) = cwd {
        process.insert("cwd".to_owned(), checked_directory(cwd)?.into());
    }
    Ok(Value::Object(process))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use switchyard_core::spec::EnvVar;

    use super::*;

    fn exec() -> ExecSpec {
        ExecSpec {
            command: vec!["ls".to_owned()],
            tty: false,
            size: None,
            stdin: false,
            env: Vec::new(),
            cwd: None,
            drain: Duration::ZERO,
        }
    }

    #[test]
    fn exec_inherits_all_but_the_command_line() {
        let main = json!({
            "terminal": true, "consoleSize": { "height": 1, "width": 2 }, "args": ["sleep"], "cwd": "/srv",
            "env": ["A=1", "B=2"], "user": { "uid": 7, "gid": 8 }, "noNewPrivileges": true, "unknown": [1],
            "apparmorProfile": "p", "capabilities": { "bounding": ["CAP_CHOWN"] },
        });
        let asked = ExecSpec {
            env: vec![EnvVar {
                name: "B".to_owned(),
                value: b"3".to_vec(),
            }],
            ..exec()
        };
        let made = exec_process(&main, &asked, &mut Vec::new()).unwrap();
        let expected = json!({
            "terminal": false, "args": ["ls"], "cwd": "/srv", "env": ["A=1", "B=3"], "user": { "uid": 7, "gid": 8 },
            "noNewPrivileges": true, "unknown": [1], "apparmorProfile": "p",
            "capabilities": { "bounding": ["CAP_CHOWN"] },
        });
        assert_eq!(made, expected);
    }

    #[test]
    fn tty_sets_term_unless_present() {
        let tty = ExecSpec {
            tty: true,
            cwd: Some(PathBuf::from("/tmp")),
            ..exec()
        };
        let made = exec_process(&json!({ "env": [] }), &tty, &mut Vec::new()).unwrap();
        assert_eq!(
            (&made["env"], &made["terminal"], &made["cwd"]),
            (&json!(["TERM=xterm"]), &json!(true), &json!("/tmp"))
        );
        let made = exec_process(&json!({ "env": ["TERM=vt100"] }), &tty, &mut Vec::new()).unwrap();
        assert_eq!(made["env"], json!(["TERM=vt100"]));
    }

    #[test]
    fn tty_has_its_initial_size() {
        let sized = ExecSpec {
            tty: true,
            size: Some((80, 24)),
            ..exec()
        };
        let made = exec_process(&json!({ "env": [] }), &sized, &mut Vec::new()).unwrap();
        assert_eq!(made["consoleSize"], json!({ "height": 24, "width": 80 }));
        let piped = ExecSpec {
            tty: false,
            ..sized
        };
        let made = exec_process(&json!({ "env": [] }), &piped, &mut Vec::new()).unwrap();
        assert_eq!(made.get("consoleSize"), None);
    }

    #[test]
    fn invalid_exec_is_rejected_by_name() {
        let refused = |exec: &ExecSpec, main: &Value| {
            exec_process(main, exec, &mut Vec::new())
                .unwrap_err()
                .to_string()
        };
        assert!(
            refused(
                &ExecSpec {
                    command: Vec::new(),
                    ..exec()
                },
                &json!({})
            )
            .starts_with("command: ")
        );
        assert!(
            refused(
                &ExecSpec {
                    cwd: Some(PathBuf::from("x")),
                    ..exec()
                },
                &json!({})
            )
            .starts_with("cwd: ")
                && refused(
                    &ExecSpec {
                        cwd: Some("/proc/self/fd/7".into()),
                        ..exec()
                    },
                    &json!({})
                )
                .starts_with("cwd: ")
        );
        assert!(refused(&exec(), &Value::Null).contains("no process"));
    }
}
