//! Plugins that hang, plugins whose caller is killed, and what becomes of their children.

use super::*;

/// The process ids that the hanging stand-in wrote down: its own and its child's.
async fn noted_pids(bench: &Bench) -> Vec<Pid> {
    let file = bench.path("log/pids");
    for _ in 0..1000 {
        let text = fs::read_to_string(&file).unwrap_or_default();
        if text.lines().count() == 2 {
            return text
                .lines()
                .map(|line| Pid::from_raw(line.parse().unwrap()))
                .collect();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the plugin has not started within 10 s");
}

/// Waits until these processes have exited. A killed child whose parent died too is reaped by process 1 some
/// time later, so a zombie counts as exited.
async fn all_gone(pids: Vec<Pid>) {
    for pid in pids {
        let running = || {
            let stat =
                fs::read_to_string(PathBuf::from(format!("/proc/{pid}/stat"))).unwrap_or_default();
            kill(pid, None) != Err(Errno::ESRCH) && !stat.contains(") Z")
        };
        for _ in 0..500 {
            if !running() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(!running(), "{pid} is still running");
    }
}

const HANG: &str = "if [ $CNI_COMMAND = ADD ]; then sleep 300 & printf '%s\\n' $$ $! > pids.new; mv pids.new pids; wait; fi";

#[tokio::test]
async fn hung_plugin_is_killed_with_its_children() {
    let bench = Bench::new();
    bench.plugin("one", HANG);
    let begin = Instant::now();
    let network = bench.network_within(&list("1.0.0", &["one"]), SHORT);
    let error = network.add(&attachment()).await.unwrap_err();
    assert!(begin.elapsed() < 3 * SHORT, "{:?}", begin.elapsed());
    assert!(
        report(&error).contains("did not finish ADD within 2 s"),
        "{}",
        report(&error)
    );
    assert_eq!(bench.order(), ["ADD one", "DEL one"]);
    all_gone(noted_pids(&bench).await).await;
}

#[tokio::test]
async fn dropping_an_add_kills_the_plugin_with_its_children() {
    let bench = Bench::new();
    bench.plugin("one", HANG);
    let network = bench.network(&list("1.0.0", &["one"]));
    let attachment = attachment();
    let pids = tokio::select! {
        made = network.add(&attachment) => panic!("a hanging plugin answered: {made:?}"),
        pids = noted_pids(&bench) => pids,
    };
    all_gone(pids).await;
    assert_eq!(bench.order(), ["ADD one"]);
}

/// The variable with the directory of a plugin, for a process of [`plugin_of_a_killed_caller_runs_to_its_end`].
const PLUGIN_DIR: &str = "SWITCHYARD_TEST_PLUGIN_DIR";

/// A DEL that reports its progress in a FIFO, waits until `hold` is written to, and prints meanwhile.
const HELD_DEL: &str = "exec 9> progress; echo begun >&9; read go < hold; \
     echo on the way >&2; echo on the way; echo finished >&9";

/// Waits for the first bytes in a FIFO that is open without blocking.
fn read_begin(progress: &mut File, caller: &mut Child) -> String {
    let mut bytes = [0; 64];
    loop {
        match progress.read(&mut bytes) {
            // Before the first writer has opened it, it is at its end.
            Ok(0) => {}
            Ok(read) => return String::from_utf8_lossy(&bytes[..read]).into_owned(),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        assert_eq!(
            caller.try_wait().unwrap(),
            None,
            "the caller ends by a kill only"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn plugin_of_a_killed_caller_runs_to_its_end() {
    if let Some(dir) = std::env::var_os(PLUGIN_DIR) {
        let list = NetworkList::parse(
            Path::new("x"),
            list("1.0.0", &["one"]).to_string().as_bytes(),
        )
        .unwrap();
        let network = Network::new(
            Arc::new(list),
            Plugins::new([PathBuf::from(dir)], Limits::default()),
        );
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(network.del(&attachment(), None)).unwrap();
        return;
    }
    let bench = Bench::new();
    bench.plugin("one", HELD_DEL);
    let [progress, hold] = ["log/progress", "log/hold"].map(|name| bench.path(name));
    for fifo in [&progress, &hold] {
        nix::unistd::mkfifo(fifo, Mode::S_IRWXU).unwrap();
    }
    let mut progress = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(progress)
        .unwrap();
    let mut caller = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "network::tests::processes::plugin_of_a_killed_caller_runs_to_its_end",
        ])
        .env(PLUGIN_DIR, bench.path("bin"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(read_begin(&mut progress, &mut caller), "begun\n");
    caller.kill().unwrap();
    caller.wait().unwrap();
    fs::write(&hold, "go\n").unwrap();
    fcntl(&progress, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    let mut rest = String::new();
    progress.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "finished\n", "it was ended by what it printed");
}

#[tokio::test]
async fn child_holding_pipes_does_not_delay_the_result() {
    let bench = Bench::new();
    let body = format!(
        "[ $CNI_COMMAND != ADD ] || {{ sleep 300 & echo $! > child; echo '{}'; }}",
        result("1.0.0", "10.0.0.2/24")
    );
    bench.plugin("one", &body);
    let begin = Instant::now();
    let made = bench
        .network(&list("1.0.0", &["one"]))
        .add(&attachment())
        .await;
    let child = fs::read_to_string(bench.path("log/child")).unwrap();
    kill(
        Pid::from_raw(child.trim().parse().unwrap()),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    assert_eq!(made.unwrap().pod_ips("eth0").len(), 1);
    assert!(begin.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn rollback_has_its_own_deadline() {
    let bench = Bench::new();
    bench.plugin("one", "[ $CNI_COMMAND = ADD ] && exit 1; exec sleep 300");
    let list = NetworkList::parse(
        Path::new("x"),
        list("1.0.0", &["one"]).to_string().as_bytes(),
    )
    .unwrap();
    let limits = Limits {
        plugin: Duration::from_secs(60),
        undo: Duration::from_millis(200),
    };
    let network = Network::new(Arc::new(list), Plugins::new([bench.path("bin")], limits));
    let begin = Instant::now();
    let error = network.add(&attachment()).await.unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(30));
    assert!(
        error.left_something() && error.to_string().contains("longer than 0.2 s"),
        "{error}"
    );
}
