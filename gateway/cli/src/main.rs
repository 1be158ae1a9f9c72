//! The `switchyard` binary: the daemon and the commands of operators. Exit status: 0 done, 2 wrong usage, and those of
//! [`exit_status`]; of `exec` that of its command.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use switchyard_config as config;
use switchyard_config::DOCUMENTED;
use switchyard_core::threads;
use switchyard_daemon::detach::{self, Detach};
use switchyard_daemon::lock::DirLocks;
use switchyard_daemon::shutdown::Shutdown;
use switchyard_daemon::{serve, start_check, wiring};
use switchyard_linux::inherited::{self, NoLongerIgnored};
use switchyard_linux::report;
use switchyard_nomad::launcher::COOKIE;
use switchyard_operator_api::{REVISION, VERSION};
use switchyard_telemetry as telemetry;
use switchyard_telemetry::LogWriting;
use tokio::runtime::Runtime;

use crate::error::CliError;
use crate::output::{Format, print, print_error, print_json};
use crate::sources::{ServeArgs, SourceArgs, file_sources};

mod admin_socket;
mod attachments;
mod bundle;
mod config_check;
mod config_files;
mod cri;
mod daemon;
mod debug;
mod devices;
mod doctor;
mod error;
mod events;
mod exec;
mod exit_status;
mod generate;
mod history;
mod images;
mod inspect;
mod local_time;
mod log_output;
mod logkeeper;
mod logs;
mod memory;
mod network;
mod nomad;
mod nomad_links;
mod output;
mod package;
mod page;
mod progress;
mod ps;
mod recover;
mod restart;
mod settings;
mod sources;
mod status;
mod swarm;
mod top;
mod volumes;
mod watch;

/// The exit status for wrong usage.
const USAGE: u8 = 2;

/// Switchyard runs containers for Nomad, Kubernetes and Docker Swarm on one node.
#[derive(Debug, Parser)]
#[command(name = "switchyard", version = VERSION, propagate_version = false, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run the daemon in the foreground.
    Serve(ServeArgs),
    /// Run the process that writes container logs; the daemon starts it unless logkeeper.mode is "external".
    Logkeeper {
        #[command(flatten)]
        sources: SourceArgs,
        /// The control socket, instead of the configured one.
        #[arg(long, value_name = "PATH", requires = "state_dir")]
        socket: Option<PathBuf>,
        /// The directory of the spools, instead of the configured one; it must be on tmpfs.
        #[arg(long, value_name = "DIR", requires = "socket")]
        state_dir: Option<PathBuf>,
        /// Do not confine the process, whatever logkeeper.sandbox says.
        #[arg(long)]
        no_sandbox: bool,
    },
    /// Show, check or reload the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Show or change the daemon's log.
    #[command(subcommand)]
    Log(settings::LogCommand),
    /// Show the health of the daemon, part by part, and how many objects it has.
    Status(status::StatusArgs),
    /// List sandboxes and tasks of all owners.
    Ps(ps::PsArgs),
    /// Show all that is known of sandboxes or tasks: times, image, command, mounts, limits, network, devices and more.
    Inspect(inspect::InspectArgs),
    /// List the images of the node, with who holds them and how many tasks use them, or why each of them stays; or remove
    /// those that an owner does not use.
    Images(images::ImagesArgs),
    /// List named volumes, or remove those that no task has.
    #[command(subcommand)]
    Volume(volumes::VolumeCommand),
    /// Show what happened lately: sandboxes and tasks that began or ended, and devices, ports or cores that were refused. Why other
    /// requests failed is in the log of the daemon.
    Events(events::EventsArgs),
    /// Show the events on record, of seven days at most: why a task ended, who asked for that, and what happened to the node.
    History(history::HistoryArgs),
    /// Run a command in a running task of any owner. The exit status is the command's, or 1 if it could not be run.
    Exec(exec::ExecArgs),
    /// Print the output of a task: all of it, its end, or what is written from now on.
    Logs(logs::LogsArgs),
    /// Show what running tasks use of processors, memory, disks and networks.
    Top(top::TopArgs),
    /// List devices and host ports with their holders, or end a lease.
    Devices(devices::DevicesArgs),
    /// Show or remove the tables of nf_tables that connect containers on bridges of the gateway; a daemon need not run.
    #[command(subcommand)]
    Network(network::NetworkCommand),
    /// Print a link that opens the status page in a browser, once.
    Page(page::PageArgs),
    /// Look at the node, and show what is wrong or will be, and how to mend it. Exit status 1 if anything is
    /// worse than a note.
    Doctor(doctor::DoctorArgs),
    /// Show the inside of the daemon: operations, locks that are held, tasks and memory; of one that does not answer its
    /// threads, and their stacks if eu-stack or gdb is installed. Exit status 1 if it does not answer.
    Debug(debug::DebugArgs),
    /// Write an archive with status, findings, events, metrics, configuration and logs, without secrets.
    SupportBundle(bundle::BundleArgs),
    /// Restart containerd or the logkeeper, as after an upgrade, while containers run.
    Restart(restart::RestartArgs),
    /// Take the containers back of which the daemon has lost the name, with the file `instance` in its state directory.
    Recover(recover::RecoverArgs),
    /// Call a CRI runtime: a small client for inspection and tests.
    Cri(cri::CriArgs),
    /// Run as a plugin of a Nomad agent, or install or remove the plugins.
    #[command(subcommand)]
    NomadPlugin(nomad::NomadPlugin),
    /// Join a Docker swarm as a worker, show the node's part in it, or leave it.
    #[command(subcommand)]
    Swarm(swarm::SwarmCommand),
    /// Show the version of this build.
    Version {
        /// Text or JSON.
        #[arg(long, short, value_enum, default_value_t)]
        output: Format,
    },
    /// Print the manual page, or write those of all commands.
    Man(generate::ManArgs),
    /// Print completions for a shell.
    Completion {
        /// The shell.
        shell: generate::Shell,
    },
    /// Do what the scripts of the Debian package cannot do by themselves.
    #[command(subcommand, hide = true)]
    Package(package::PackageCommand),
    /// Execute a program that outlives the process that started it.
    #[command(hide = true)]
    Detach {
        /// The pid file.
        #[arg(long)]
        pid_file: PathBuf,
        /// The log file for its output.
        #[arg(long)]
        log: PathBuf,
        /// The program and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the documented defaults: a complete configuration file.
    Default,
    /// Print the effective configuration, from the files, the environment and the flags.
    Dump {
        #[command(flatten)]
        sources: SourceArgs,
        /// Print the source of each value.
        #[arg(long)]
        origin: bool,
        /// Print what is in force in the running daemon, instead of what the sources hold now.
        #[arg(long, conflicts_with_all = ["config", "set"])]
        running: bool,
        #[command(flatten)]
        socket: daemon::Socket,
    },
    /// Make the daemon read its configuration again. Exit status 1, and nothing changes, if the files are
    /// wrong.
    Reload(daemon::Target),
    /// Check a configuration: exit status 0 if it is valid, even with warnings, 78 if not.
    Check(config_check::CheckArgs),
    /// Print a configuration file with the keys of older versions renamed and deleted. The file stays as it is.
    Migrate(config_files::MigrateArgs),
}

/// Runs the command that the process was started with.
#[must_use]
fn main() -> ExitCode {
    let args = nomad::as_started(
        std::env::args_os().collect(),
        std::env::var_os(COOKIE.0).as_deref(),
    );
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && nomad::report_error(&error) => {
            return ExitCode::from(USAGE);
        }
        // clap itself prints what is wrong with the usage, and ends with status 2.
        Err(error) => error.exit(),
    };
    let ignored = if matches!(cli.command, CliCommand::Detach { .. }) {
        NoLongerIgnored::All
    } else {
        NoLongerIgnored::Children
    };
    let outcome = inherited::reset(ignored)
        .map_err(CliError::Inherited)
        .and_then(|()| run(cli.command));
    telemetry::flush_log();
    match outcome {
        Ok(code) => code,
        Err(CliError::Nomad(error)) if nomad::report_error(&error) => ExitCode::FAILURE,
        Err(error) => {
            // The journal takes this prefix for the priority of an error.
            let priority = if telemetry::is_stderr_journal() {
                "<3>"
            } else {
                ""
            };
            // An error is ignored: if standard error cannot be written, nothing can be reported.
            let _ = print_error(format!("{priority}switchyard: {}\n", report(&error)));
            ExitCode::from(exit_status::of(&error))
        }
    }
}

fn run(command: CliCommand) -> Result<ExitCode, CliError> {
    match command {
        CliCommand::Serve(args) => serve_command(&args)?,
        CliCommand::Logkeeper {
            sources,
            socket,
            state_dir,
            no_sandbox,
        } => {
            logkeeper::logkeeper(&sources, socket.zip(state_dir), no_sandbox)?;
        }
        CliCommand::Config(command) => config_command(command)?,
        CliCommand::Log(command) => block_on(settings::log(&command))??,
        CliCommand::Status(target) => return Ok(block_on(status::status(&target))??),
        CliCommand::Ps(args) => block_on(ps::ps(&args))??,
        CliCommand::Inspect(args) => return Ok(block_on(inspect::inspect(&args))??),
        CliCommand::Images(args) => block_on(images::images(&args))??,
        CliCommand::Volume(command) => block_on(volumes::volumes(&command))??,
        CliCommand::Events(args) => block_on(events::events(&args))??,
        CliCommand::History(args) => block_on(history::history(&args))??,
        CliCommand::Exec(args) => return Ok(block_on(exec::exec(&args))??),
        CliCommand::Logs(args) => return Ok(block_on(logs::logs(&args))??),
        CliCommand::Top(args) => block_on(top::top(&args))??,
        CliCommand::Devices(args) => block_on(devices::run(&args))??,
        CliCommand::Network(command) => network::network(&command)?,
        CliCommand::Page(args) => block_on(page::page(&args))??,
        CliCommand::Doctor(args) => {
            return doctor::doctor(&args, file_sources(args.config.clone()));
        }
        CliCommand::Debug(args) => return debug::debug(&args, file_sources(args.config.clone())),
        CliCommand::SupportBundle(args) => {
            bundle::support_bundle(&args, file_sources(args.config.clone()))?;
        }
        CliCommand::Restart(args) => block_on(restart::restart(&args))??,
        CliCommand::Recover(args) => {
            let config = recover::configuration(&args, &file_sources(args.config.clone()))?;
            recover::recover(&args, &config)?;
        }
        CliCommand::Cri(command) => return Ok(block_on(cri::run(command))??),
        CliCommand::NomadPlugin(command) => nomad::run(command)?,
        CliCommand::Swarm(command) => return Ok(block_on(swarm::swarm(&command))??),
        CliCommand::Package(command) => return package::run(command),
        CliCommand::Version { output } => version(output)?,
        CliCommand::Man(args) => generate::man(Cli::command(), &args)?,
        CliCommand::Completion { shell } => generate::completion(Cli::command(), shell)?,
        CliCommand::Detach {
            pid_file,
            log,
            command,
        } => {
            return Err(CliError::Detach(detach::run(&Detach {
                pid_file,
                log,
                command,
            })));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs one short command on this thread.
fn block_on<F: Future>(command: F) -> Result<F::Output, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    Ok(runtime.map_err(CliError::Runtime)?.block_on(command))
}

fn serve_command(args: &ServeArgs) -> Result<(), CliError> {
    let sources = args.sources()?;
    let loaded = config::load_for_start(&sources)?;
    let log_level = telemetry::init(&loaded.effective.config.log, LogWriting::ByThread)?;
    for warning in loaded.warnings.iter().chain(&loaded.ignored) {
        tracing::warn!("configuration: {warning}");
    }
    memory::hide();
    memory::give_back();
    // Before anything is touched: the next start would end the same way.
    let traces = start_check::check(&loaded.effective.config, &sources.env)?;
    let exe = std::env::current_exe().map_err(CliError::Exe)?;
    let processors = threads::processors();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads::workers(processors))
        .max_blocking_threads(threads::total(processors))
        .enable_all()
        .build()
        .map_err(CliError::Runtime)?;
    let mut locks = DirLocks::default();
    let daemon = serve::run(
        loaded,
        wiring::containerd,
        &exe,
        log_level,
        traces,
        Shutdown::default(),
        &mut locks,
    );
    let ended = runtime.block_on(Box::pin(daemon));
    leave(runtime, locks);
    Ok(ended?)
}

/// Leaves unfinished work to the end of this process, which is near: as after a kill, the next daemon can
/// continue it. Shutting the runtime down would drop the work instead, and kill CNI plugins amid their work,
/// whose rules no later DEL finds. The kernel releases the locks with the process, when no work runs any
/// more.
fn leave(runtime: Runtime, locks: DirLocks) {
    std::mem::forget((runtime, locks));
}

fn config_command(command: ConfigCommand) -> Result<(), CliError> {
    match command {
        ConfigCommand::Default => print(DOCUMENTED)?,
        ConfigCommand::Dump {
            sources: _,
            origin,
            running: true,
            socket,
        } => {
            block_on(settings::running(&socket, origin))??;
        }
        ConfigCommand::Dump {
            sources: args,
            origin,
            running: false,
            socket: _,
        } => {
            let mut loaded = config::load_for_start(&args.sources()?)?;
            config_files::warn(&loaded)?;
            config_files::settle(&mut loaded.effective)?;
            print(loaded.effective.dump(origin))?;
        }
        ConfigCommand::Reload(target) => block_on(settings::reload(&target))??,
        ConfigCommand::Check(args) => config_check::check(&args)?,
        ConfigCommand::Migrate(args) => config_files::migrate(&args)?,
    }
    Ok(())
}

fn version(output: Format) -> io::Result<()> {
    match output {
        Format::Text => print(format!("switchyard {VERSION} ({REVISION})\n")),
        Format::Json => print_json(&serde_json::json!({
            "name": "switchyard",
            "version": VERSION,
            "revision": REVISION,
            "cri": "v1",
        })),
    }
}

#[cfg(test)]
mod tests;
