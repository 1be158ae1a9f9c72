//! A node whose network plugin fails on request.

use switchyard_tests::cni_plugin;

use super::*;

/// A plugin at the end of the chain. A file named after the command says how it misbehaves; without the file
/// it passes on the result.
const PLUGIN: &str = r#"echo "$CNI_COMMAND begins" >>"DIR/runs"
case $(cat "DIR/$CNI_COMMAND" 2>/dev/null) in
fail) echo '{"cniVersion":"1.0.0","code":7,"msg":"a planned failure"}'; exit 1 ;;
held)
  echo >"DIR/held"
  while [ -e "DIR/hold" ]; do sleep 0.05; done
  echo 'its work goes on' >&2
  echo "$CNI_COMMAND is done" >>"DIR/runs" ;;
hang) echo >"DIR/hung"; exec "DIR/hangs" 1000 ;;
nonsense) echo 'this is no result'; exit 0 ;;
version) echo '{"cniVersion":"7.7.7","ips":[]}'; exit 0 ;;
noaddress) echo '{"cniVersion":"1.0.0","interfaces":[],"ips":[]}'; exit 0 ;;
giant) head -c 3000000 /dev/zero | tr '\0' ' '; exit 0 ;;
killed) kill -9 $$ ;;
full) echo '{"cniVersion":"1.0.0","code":5,"msg":"write lease: no space left on device"}'; exit 1 ;;
esac
"#;

/// A node whose network ends with a plugin that a test controls.
pub(super) struct FaultyCniNode {
    pub(super) node: TestNode,
    pub(super) dir: PathBuf,
}

impl FaultyCniNode {
    pub(super) fn start() -> Self {
        Self::start_within(2)
    }

    /// With a plugin that may take so many seconds.
    pub(super) fn start_within(seconds: u32) -> Self {
        let mut place = PathBuf::new();
        let node = TestNode::start_configured(|root| {
            let dir = cni_plugin::add(root, "wayward", PLUGIN);
            // The name under which its process is found.
            symlink("/bin/sleep", dir.join("hangs")).expect("the root can be written");
            let conf = format!(
                "[network]\nplugin_timeout_seconds = {seconds}\nbin_dirs = [{dir:?}, {:?}]\n",
                prereq::CNI_BIN_DIR
            );
            place = dir;
            conf
        });
        Self { node, dir: place }
    }

    /// Makes the plugin do this from now on at a command (`ADD`, `DEL`).
    pub(super) fn set_plugin_fault(&self, command: &str, what: &str) {
        fs::write(self.dir.join(command), what).expect("the root can be written");
    }

    /// Makes the plugin succeed at a command.
    pub(super) fn clear_plugin_fault(&self, command: &str) {
        fs::remove_file(self.dir.join(command)).expect("it had a fault");
    }

    /// Fails unless the plugin has hung, if that was requested, and was killed.
    #[track_caller]
    pub(super) fn assert_given_up(&self, what: &str) {
        let hung = fs::remove_file(self.dir.join("hung")).is_ok();
        assert_eq!(hung, what == "hang", "{what}");
        let command = format!("{} 1000", self.dir.join("hangs").display());
        let runs = || processes::running(self.node.root().path(), &command).is_some();
        assert!(
            eventually(LIMIT, || !runs()),
            "a plugin that was given up on still runs"
        );
    }

    pub(super) fn conflist(&self) -> PathBuf {
        self.node.root().cni_conf().join("10-test.conflist")
    }
}
