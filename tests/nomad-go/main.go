// A host of plugins that is not ours: go-plugin's own client and HCL's own encoder, from Debian's packages, drive the task driver through
// the life of a task. It is built and run by tests/it/nomad/go_host.rs, which tells it what to start in a file, and fails with the first
// thing that is not as an agent needs it.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/golang/protobuf/proto"
	"github.com/golang/protobuf/ptypes"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	base "switchyard/wire/nomad/plugins/base"
	drivers "switchyard/wire/nomad/plugins/drivers"
	hclspec "switchyard/wire/nomad/plugins/shared/hclspec"
	structs "switchyard/wire/nomad/plugins/shared/structs"
)

// orders are what the test wants driven.
type orders struct {
	// The plugin and its arguments.
	Exe  string
	Args []string
	// The configuration of the plugin, and of the task's driver.
	Plugin json.RawMessage
	Task   json.RawMessage
	// A TaskConfig without its driver's configuration, encoded.
	Request []byte
	// The file that takes the bytes of the task's configuration, for the test to compare.
	Encoded string
}

// connection is go-plugin's way to a gRPC service: it gives the connection itself.
type connection struct {
	plugin.NetRPCUnsupportedPlugin
}

func (connection) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error {
	return fmt.Errorf("this is a host, not a plugin")
}

func (connection) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (interface{}, error) {
	return conn, nil
}

// instance is one started plugin.
type instance struct {
	client *plugin.Client
	conn   *grpc.ClientConn
	log    *bytes.Buffer
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	check(err)
	var orders orders
	check(json.Unmarshal(text, &orders))

	schema := ask(orders)
	config := must(encode(schema, orders.Plugin))
	try(orders, config)
	drive(orders, config)
	fmt.Println("all as it should be")
}

// ask is the first start: what is it, and what does it take?
func ask(orders orders) *hclspec.Spec {
	plugin := start(orders)
	client := base.NewBasePluginClient(plugin.conn)
	info := must(client.PluginInfo(context.Background(), &base.PluginInfoRequest{}))
	expect(info.GetType() == base.PluginType_DRIVER, "the type: %v", info)
	expect(len(info.GetPluginApiVersions()) == 1 && info.GetPluginApiVersions()[0] == "v0.1.0", "%v", info)
	schema := must(client.ConfigSchema(context.Background(), &base.ConfigSchemaRequest{}))
	plugin.kill()
	return schema.GetSpec()
}

// try is the second start: does it take this configuration? An agent asks twice.
func try(orders orders, config []byte) {
	plugin := start(orders)
	client := base.NewBasePluginClient(plugin.conn)
	request := &base.SetConfigRequest{MsgpackConfig: config, PluginApiVersion: "v0.1.0"}
	must(client.SetConfig(context.Background(), request))
	must(client.SetConfig(context.Background(), request))
	request.MsgpackConfig = []byte{0x81}
	_, err := client.SetConfig(context.Background(), request)
	expect(err != nil, "what is no configuration is refused")
	plugin.kill()
}

// drive is the third start, the one that stays, and the life of a task.
func drive(orders orders, config []byte) {
	plugin := start(orders)
	nomad := &base.NomadConfig{Driver: &base.NomadDriverConfig{ClientMaxPort: 14512, ClientMinPort: 14000}}
	request := &base.SetConfigRequest{MsgpackConfig: config, NomadConfig: nomad, PluginApiVersion: "v0.1.0"}
	must(base.NewBasePluginClient(plugin.conn).SetConfig(context.Background(), request))
	driver := drivers.NewDriverClient(plugin.conn)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	must(driver.Init(ctx, &drivers.InitRequest{}))
	fingerprints := must(driver.Fingerprint(ctx, &drivers.FingerprintRequest{}))
	must(fingerprints.Recv())
	capabilities := must(driver.Capabilities(ctx, &drivers.CapabilitiesRequest{})).GetCapabilities()
	expect(capabilities.GetExec() && capabilities.GetSendSignals(), "%v", capabilities)

	schema := must(driver.TaskConfigSchema(ctx, &drivers.TaskConfigSchemaRequest{})).GetSpec()
	task := &drivers.TaskConfig{}
	check(proto.Unmarshal(orders.Request, task))
	task.MsgpackDriverConfig = must(encode(schema, orders.Task))
	check(os.WriteFile(orders.Encoded, task.MsgpackDriverConfig, 0o600))

	refuse(ctx, driver, task)
	started := must(driver.StartTask(ctx, &drivers.StartTaskRequest{Task: task}))
	expect(proto.Equal(started.GetHandle().GetConfig(), task), "the handle has the task's configuration")
	execute(ctx, driver, task.GetId())
	plugin = reattach(plugin, started.GetHandle())
	end(drivers.NewDriverClient(plugin.conn), task.GetId())
	plugin.kill()
}

// refuse starts a task that cannot work, and looks at what an agent makes of the error.
func refuse(ctx context.Context, driver drivers.DriverClient, task *drivers.TaskConfig) {
	wrong := proto.Clone(task).(*drivers.TaskConfig)
	wrong.MsgpackDriverConfig = []byte{0x81}
	_, err := driver.StartTask(ctx, &drivers.StartTaskRequest{Task: wrong})
	expect(status.Code(err) == codes.InvalidArgument, "a task that cannot work: %v", err)
	for _, detail := range status.Convert(err).Details() {
		recoverable, ok := detail.(*structs.RecoverableError)
		expect(!ok || !recoverable.GetRecoverable(), "trying it again cannot help: %v", err)
	}
}

// execute runs a command in the task, without and with streams.
func execute(ctx context.Context, driver drivers.DriverClient, id string) {
	request := &drivers.ExecTaskRequest{TaskId: id, Command: []string{"sh", "-c", "echo out; exit 3"}}
	request.Timeout = ptypes.DurationProto(30 * time.Second)
	answer := must(driver.ExecTask(ctx, request))
	expect(string(answer.GetStdout()) == "out\n" && answer.GetResult().GetExitCode() == 3, "%v", answer)

	stream := must(driver.ExecTaskStreaming(ctx))
	setup := &drivers.ExecTaskStreamingRequest_Setup{TaskId: id, Command: []string{"head", "-n1"}}
	check(stream.Send(&drivers.ExecTaskStreamingRequest{Setup: setup}))
	typed := &drivers.ExecTaskStreamingIOOperation{Data: []byte("typed\n")}
	check(stream.Send(&drivers.ExecTaskStreamingRequest{Stdin: typed}))
	var said []byte
	for {
		answer := must(stream.Recv())
		said = append(said, answer.GetStdout().GetData()...)
		if answer.GetExited() {
			expect(answer.GetResult().GetExitCode() == 0 && string(said) == "typed\n", "%v after %q", answer, said)
			return
		}
	}
}

// reattach leaves the plugin as it is, finds it again by address and process, and recovers the task.
func reattach(before *instance, handle *drivers.TaskHandle) *instance {
	after := connect(before.log, &plugin.ClientConfig{Reattach: before.client.ReattachConfig()})
	check(before.conn.Close())
	must(base.NewBasePluginClient(after.conn).PluginInfo(context.Background(), &base.PluginInfoRequest{}))
	driver := drivers.NewDriverClient(after.conn)
	must(driver.RecoverTask(context.Background(), &drivers.RecoverTaskRequest{Handle: handle}))
	inspected := must(driver.InspectTask(context.Background(), &drivers.InspectTaskRequest{TaskId: handle.GetConfig().GetId()}))
	expect(inspected.GetTask().GetState() == drivers.TaskState_RUNNING, "%v", inspected)
	expect(inspected.GetTask().GetResult() != nil, "an agent looks at the result")
	return after
}

// end stops the task, and has its end told to who waits.
func end(driver drivers.DriverClient, id string) {
	ctx := context.Background()
	waited := make(chan *drivers.WaitTaskResponse, 1)
	go func() { waited <- must(driver.WaitTask(ctx, &drivers.WaitTaskRequest{TaskId: id})) }()
	stop := &drivers.StopTaskRequest{TaskId: id, Timeout: ptypes.DurationProto(10 * time.Second), Signal: "SIGTERM"}
	must(driver.StopTask(ctx, stop))
	answer := <-waited
	expect(answer.GetResult() != nil && answer.GetErr() == "", "%v", answer)
	must(driver.DestroyTask(ctx, &drivers.DestroyTaskRequest{TaskId: id, Force: true}))
	must(driver.DestroyTask(ctx, &drivers.DestroyTaskRequest{TaskId: id, Force: true}))
}

// start starts a plugin as an agent does.
func start(orders orders) *instance {
	return connect(&bytes.Buffer{}, &plugin.ClientConfig{Cmd: exec.Command(orders.Exe, orders.Args...)})
}

func connect(log *bytes.Buffer, config *plugin.ClientConfig) *instance {
	config.HandshakeConfig = plugin.HandshakeConfig{
		ProtocolVersion:  2,
		MagicCookieKey:   "NOMAD_PLUGIN_MAGIC_COOKIE",
		MagicCookieValue: "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
	}
	config.Plugins = map[string]plugin.Plugin{"driver": connection{}}
	config.AllowedProtocols = []plugin.Protocol{plugin.ProtocolGRPC}
	config.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: log})
	client := plugin.NewClient(config)
	protocol := must(client.Client())
	check(protocol.Ping())
	return &instance{client: client, conn: must(protocol.Dispense("driver")).(*grpc.ClientConn), log: log}
}

// kill ends a plugin as an agent does: it has two seconds.
func (plugin *instance) kill() {
	plugin.client.Kill()
	expect(plugin.client.Exited(), "the plugin has ended")
	log := plugin.log.String()
	expect(!strings.Contains(log, "failed to exit gracefully"), "it had to be killed: %s", log)
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func expect(holds bool, format string, values ...interface{}) {
	if !holds {
		panic(fmt.Sprintf(format, values...))
	}
}
