//! Wrappers for the programs that the start of a pod runs: they run the real program and record how long it
//! took.
//!
//! Each call costs about a millisecond more, so they are installed only for a breakdown, and then for both
//! sides.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use switchyard_tests::prereq::{self, CNI_BIN_DIR};

use crate::breakdown::CallTotals;
use crate::failure::Failure;

/// The wrapper: runs the real program of the same name, and appends a line to the file beside it.
const SOURCE: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *command_of(int argc, char **argv) {
    static const char *known[] = {"create", "start", "delete", "kill", "state", "exec", "update", "ps", "events"};
    const char *cni = getenv("CNI_COMMAND");
    if (cni) return cni;
    for (int i = 1; i < argc; i++)
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            if (!strcmp(argv[i], known[k])) return known[k];
    return "other";
}

int main(int argc, char **argv) {
    char self[4096], real[4096], log[4200], line[128];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0) return 111;
    self[length] = 0;
    const char *name = strrchr(self, '/') + 1;
    snprintf(real, sizeof real, "%s/%s", strcmp(name, "runc") ? CNI_DIR : RUNC_DIR, name);
    snprintf(log, sizeof log, "%s.log", self);

    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    pid_t child = fork();
    if (child == 0) {
        argv[0] = real;
        execv(real, argv);
        _exit(127);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) < 0) return 111;
    clock_gettime(CLOCK_MONOTONIC, &end);
    long long time = (end.tv_sec - begin.tv_sec) * 1000000000LL + (end.tv_nsec - begin.tv_nsec);
    int file = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0) {
        int size = snprintf(line, sizeof line, "%s %lld\n", command_of(argc, argv), time);
        if (write(file, line, size) < 0) return 111;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
"#;

/// The stand-ins of one side.
#[derive(Clone, Debug)]
pub(crate) struct TimedPrograms {
    dir: PathBuf,
}

impl TimedPrograms {
    /// Makes them in a new directory.
    pub(crate) fn make(dir: PathBuf) -> Result<Self, Failure> {
        let runc = prereq::require("runc", "runc");
        let runc_dir = runc.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(&dir)?;
        let source = dir.join("source.c");
        let program = dir.join("runc");
        fs::write(&source, SOURCE)?;
        let status = Command::new(prereq::require("cc", "gcc libc6-dev"))
            .args(["-O2", "-static", "-s"])
            .arg(format!("-DCNI_DIR=\"{CNI_BIN_DIR}\""))
            .arg(format!("-DRUNC_DIR=\"{}\"", runc_dir.display()))
            .arg("-o")
            .arg(&program)
            .arg(&source)
            .status()?;
        if !status.success() {
            return Err(format!("cannot compile the stand-ins: cc ended with {status}").into());
        }
        for plugin in [
            "bridge",
            "host-local",
            "loopback",
            "portmap",
            "bandwidth",
            "firewall",
        ] {
            fs::copy(&program, dir.join(plugin))?;
        }
        Ok(Self { dir })
    }

    /// Returns the directory of the CNI plugins.
    pub(crate) fn plugins(&self) -> &Path {
        &self.dir
    }

    /// The runc.
    pub(crate) fn runc(&self) -> PathBuf {
        self.dir.join("runc")
    }

    /// The runs so far, by program and command.
    pub(crate) fn calls(&self) -> Result<BTreeMap<String, CallTotals>, Failure> {
        let mut found: BTreeMap<String, CallTotals> = BTreeMap::new();
        for path in fs::read_dir(&self.dir)?.flatten().map(|entry| entry.path()) {
            if path.extension().is_none_or(|end| end != "log") {
                continue;
            }
            let program = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            for line in fs::read_to_string(&path)?.lines() {
                let Some((command, time)) = line.split_once(' ') else {
                    continue;
                };
                let calls = found.entry(format!("{program} {command}")).or_default();
                calls.count += 1.0;
                calls.seconds += time.parse::<f64>()? / 1e9;
            }
        }
        Ok(found)
    }
}
