//! The lanes that run side by side, and the stages that run afterwards.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use parking_lot::Mutex;
use switchyard_tests::shards::{Plan, RootTests, SHARD_VARIABLE, WHOLE_VARIABLE};
use switchyard_tests::versions::OtherVersion;

use crate::artifacts::{Artifacts, TestProgram};
use crate::program::{Outcome, Run};
use crate::summary::Summary;

/// The parts of the benchmark that every run does: that it works. What it measures of a build for tests says nothing.
const BENCHMARK: [&str; 3] = ["--quick", "--only", "pods,streams,tasks,pulls"];

/// The inputs for running the tests of one build.
#[derive(Debug)]
pub(crate) struct Lanes<'a> {
    /// The programs of the build.
    pub(crate) artifacts: &'a Artifacts,
    /// The repository.
    pub(crate) root: &'a Path,
    /// The directory for what is printed.
    pub(crate) logs: &'a Path,
    /// Cargo's messages about the build.
    pub(crate) built: &'a Path,
}

impl Lanes<'_> {
    /// Runs the tests whose name contains one of the words: of a list of kill points all. The newer version is built for
    /// them; the former one is the tested program, unless the caller names another.
    pub(crate) fn named(&self, words: &[String], summary: &mut Summary) {
        let timer = summary.stage("tests");
        let programs = || self.artifacts.units.iter().chain([&self.artifacts.it]);
        let names: Vec<String> = programs().flat_map(TestProgram::tests).collect();
        summary.require_tests(words, &names);
        let mut variables = Vec::new();
        let is_named = |name: &String| words.iter().any(|word| name.contains(word));
        let newer = OtherVersion::Newer;
        let needs_newer = |name: &String| OtherVersion::of_test(name) == Some(newer);
        let wants_newer = names.iter().any(|name| needs_newer(name) && is_named(name));
        if wants_newer
            && std::env::var_os(newer.variable()).is_none()
            && self.build_version(newer, &Mutex::new(&mut *summary))
        {
            variables.push((newer.variable(), self.version(newer)));
        }
        for program in programs() {
            let variables = variables.clone();
            let outcome = self.test(program, words.to_vec(), variables, threads(), &|line| {
                if line.starts_with("test ") {
                    println!("{line}");
                }
            });
            summary.program(&program.name, &outcome);
        }
        summary.end(timer);
    }

    /// Runs the tests of all programs, the benchmark, and the documentation where the plan has it. Returns those of the plan's
    /// other versions whose programs are there.
    pub(crate) fn tests(&self, plan: &Plan, summary: &mut Summary) -> Vec<OtherVersion> {
        let timer = summary.stage("tests");
        let shared = Mutex::new(summary);
        let mut built = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| self.integration(plan, &shared));
            scope.spawn(|| self.crates(plan, &shared));
            scope.spawn(|| {
                self.prepare_roots(plan, &shared);
                let mut versions = OtherVersion::ALL.to_vec();
                versions.retain(|version| plan.versions.contains(version));
                versions.retain(|version| self.build_version(*version, &shared));
                built = versions;
            });
        });
        shared.into_inner().end(timer);
        built
    }

    fn integration(&self, plan: &Plan, summary: &Mutex<&mut Summary>) {
        let timer = summary.lock().stage("  the integration tests");
        let mut arguments = Vec::new();
        let tests = self.artifacts.it.tests();
        let of_versions = tests.iter().map(String::as_str);
        let of_versions = of_versions.filter(|test| OtherVersion::of_test(test).is_some());
        for name in plan.skipped.iter().copied().chain(of_versions) {
            arguments.extend(["--skip".to_owned(), name.to_owned()]);
        }
        // Otherwise the name of a test would skip those that begin like it.
        arguments.push("--exact".to_owned());
        let outcome = self.test(
            &self.artifacts.it,
            arguments,
            points(plan),
            threads(),
            &|line| println!("{line}"),
        );
        let mut summary = summary.lock();
        summary.times(&outcome.report.times);
        summary.program(&self.artifacts.it.name, &outcome);
        summary.end(timer);
    }

    fn crates(&self, plan: &Plan, summary: &Mutex<&mut Summary>) {
        let timer = summary.lock().stage("  the tests of the crates");
        for program in &self.artifacts.units {
            let outcome = self.test(program, Vec::new(), Vec::new(), threads() / 2, &|_| {});
            summary.lock().program(&program.name, &outcome);
        }
        summary.lock().end(timer);
        let timer = summary.lock().stage("  the benchmark");
        let benchmark = &self.artifacts.benchmark;
        let mut command = Command::new(&benchmark.path);
        command.args(BENCHMARK).current_dir(&benchmark.dir);
        self.command("benchmark", &mut command, summary);
        summary.lock().end(timer);
        if plan.documentation {
            let timer = summary.lock().stage("  the documentation");
            let mut command = Command::new("cargo");
            command
                .args(["doc", "--workspace", "--no-deps", "--locked"])
                .current_dir(self.root);
            command.env("RUSTDOCFLAGS", "-D warnings");
            self.command("documentation", &mut command, summary);
            summary.lock().end(timer);
        }
    }

    /// Makes the roots that the plan has tests in.
    fn prepare_roots(&self, plan: &Plan, summary: &Mutex<&mut Summary>) {
        let roots = plan.roots.iter();
        let roots: BTreeSet<_> = roots
            .map(|(suite, tests)| (suite.name(), tests.options()))
            .collect();
        for (suite, options) in roots {
            let timer = summary.lock().stage(&format!("  a root of {suite}"));
            let mut command = Command::new(self.root.join("tests/root"));
            command
                .args(options)
                .args(["--prepare", suite])
                .current_dir(self.root);
            self.command(&format!("root-{suite}"), &mut command, summary);
            summary.lock().end(timer);
        }
    }

    /// Builds the program of another version; returns whether it is there.
    fn build_version(&self, version: OtherVersion, summary: &Mutex<&mut Summary>) -> bool {
        let name = version.name();
        let timer = summary.lock().stage(&format!("  the {name} version"));
        // The compiler takes what the tests beside it leave of the processors.
        let mut command = Command::new("nice");
        command
            .arg("-n10")
            .arg(self.root.join("tests/versions"))
            .arg(name);
        command.current_dir(self.root);
        let is_built = self.command(&format!("version-{name}"), &mut command, summary);
        summary.lock().end(timer);
        is_built
    }

    /// The program of another version.
    fn version(&self, version: OtherVersion) -> String {
        let program = self.root.join("target/versions").join(version.name());
        program.display().to_string()
    }

    /// Runs the tests with the programs of these other versions.
    pub(crate) fn versions(&self, built: &[OtherVersion], summary: &mut Summary) {
        if built.is_empty() {
            return;
        }
        let timer = summary.stage("other versions");
        let program = TestProgram {
            name: "versions".to_owned(),
            ..self.artifacts.it.clone()
        };
        let has_program = |test: &String| {
            OtherVersion::of_test(test).is_some_and(|version| built.contains(&version))
        };
        let tests = program.tests().into_iter();
        let mut arguments: Vec<_> = tests.filter(has_program).collect();
        arguments.push("--exact".to_owned());
        let variables = self.variables_of(built);
        let outcome = self.test(&program, arguments, variables, threads(), &|line| {
            println!("{line}");
        });
        summary.program(&program.name, &outcome);
        summary.end(timer);
    }

    /// The variables with the programs of these other versions.
    fn variables_of(&self, built: &[OtherVersion]) -> Vec<(&'static str, String)> {
        built
            .iter()
            .map(|version| (version.variable(), self.version(*version)))
            .collect()
    }

    /// Boots the guest, for the facts and tests of the plan, and for the facts of these other versions.
    pub(crate) fn guest(&self, plan: &Plan, built: &[OtherVersion], summary: &mut Summary) {
        let timer = summary.stage("guest");
        let mut command = Command::new(self.root.join("tests/vm"));
        command
            .arg("--built")
            .arg(self.built)
            .current_dir(self.root);
        let of_versions = built.iter().filter_map(|version| version.fact());
        for fact in plan.facts.iter().copied().chain(of_versions) {
            command.args(["--only", fact]);
        }
        if built.contains(&OtherVersion::Former) {
            command.arg("--former");
        }
        for test in &plan.smoke {
            command.args(["--smoke", test]);
        }
        if plan.power_cut {
            command.arg("--cut");
        }
        if plan.selinux {
            command.arg("--selinux");
        }
        self.command("guest", &mut command, &Mutex::new(summary));
        summary.end(timer);
    }

    /// Runs the tests of the plan in the roots of other suites; those with other versions where the program of the version is there.
    pub(crate) fn roots(&self, plan: &Plan, built: &[OtherVersion], summary: &mut Summary) {
        if plan.roots.is_empty() {
            return;
        }
        let names = self.artifacts.it.tests();
        let can_run =
            |test: &str| OtherVersion::of_test(test).is_none_or(|version| built.contains(&version));
        for (suite, tests) in &plan.roots {
            let name = format!("{} {tests}", suite.name());
            let timer = summary.stage(&name);
            let program = TestProgram {
                name: name.clone(),
                dir: self.root.to_owned(),
                path: self.root.join("tests/root"),
            };
            let own = names.iter().filter(|test| tests.has(test) && can_run(test));
            let options = tests.options().iter();
            let mut arguments: Vec<_> = options.map(|option| (*option).to_owned()).collect();
            arguments.push(suite.name().to_owned());
            arguments.push(self.artifacts.it.path.display().to_string());
            arguments.extend(own.cloned());
            arguments.push("--exact".to_owned());
            let mut variables = points(plan);
            variables.push((
                "CARGO_MANIFEST_DIR",
                self.artifacts.it.dir.display().to_string(),
            ));
            variables.extend(self.variables_of(built));
            let outcome = self.test(&program, arguments, variables, threads(), &|line| {
                // It takes as long as all that went before.
                if *tests == RootTests::Whole {
                    println!("{line}");
                }
            });
            summary.program_with_known(&name, &outcome, *suite);
            summary.end(timer);
        }
    }

    fn test(
        &self,
        program: &TestProgram,
        arguments: Vec<String>,
        variables: Vec<(&'static str, String)>,
        threads: usize,
        on_line: &dyn Fn(&str),
    ) -> Outcome {
        let name: String = program
            .name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let log = self.logs.join(format!("{name}.log"));
        Run {
            program,
            arguments,
            variables,
            threads,
            log,
        }
        .run(on_line)
        .unwrap_or_else(|error| panic!("cannot run {}: {error}", program.path.display()))
    }

    /// Runs a command, whose output is printed; returns whether it succeeded.
    fn command(&self, name: &str, command: &mut Command, summary: &Mutex<&mut Summary>) -> bool {
        let path = self.logs.join(format!("{name}.log"));
        let log = std::fs::File::create(&path).expect("the directory of the logs can be written");
        let copy = log.try_clone().expect("a descriptor can be duplicated");
        let program = command.get_program().to_owned();
        let status = command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(copy)
            .status();
        let status =
            status.unwrap_or_else(|error| panic!("cannot run {}: {error}", display(&program)));
        summary.lock().command(name, status.success(), &path);
        status.success()
    }
}

fn display(program: &OsStr) -> std::path::Display<'_> {
    Path::new(program).display()
}

/// Returns the points of lists that the integration tests take.
fn points(plan: &Plan) -> Vec<(&'static str, String)> {
    let Some(shard) = plan.shard else {
        return Vec::new();
    };
    let whole: Vec<&str> = plan.whole.iter().copied().collect();
    vec![
        (SHARD_VARIABLE, shard.to_string()),
        (WHOLE_VARIABLE, whole.join(":")),
    ]
}

/// Returns the number of concurrent tests: each waits for some of its time, so there are two for each
/// processor.
fn threads() -> usize {
    let given = std::env::var("RUST_TEST_THREADS")
        .ok()
        .and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| 2 * thread::available_parallelism().map_or(2, std::num::NonZero::get))
}
