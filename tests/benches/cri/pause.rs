//! The image of the pause container that containerd's CRI plugin puts into every pod.

use std::fs;
use std::path::Path;

use switchyard_tests::image::{Image, ImageBuilder, LayerBuilder};

use crate::c_program::compile;
use crate::failure::Failure;

/// The program of a pause container: it waits until it is stopped. As small and static as the one Kubernetes
/// ships.
const SOURCE: &str = r"
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

static void on_stop(int number) { (void)number; _exit(0); }
static void on_child(int number) { (void)number; while (waitpid(-1, NULL, WNOHANG) > 0) {} }

int main(void) {
    struct sigaction stop = { .sa_handler = on_stop }, child = { .sa_handler = on_child, .sa_flags = SA_NOCLDSTOP };
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGCHLD, &child, NULL);
    for (;;) pause();
}
";

/// Builds it; `dir` takes the compiler's files.
pub(crate) fn build(dir: &Path) -> Result<Image, Failure> {
    let program = compile(dir, "pause", SOURCE)?;
    let layer = LayerBuilder::default()
        .file("pause", fs::read(&program)?, 0o755)
        .build();
    Ok(ImageBuilder::new()
        .layer(layer)
        .entrypoint(&["/pause"])
        .user("65535:65535")
        .build())
}
