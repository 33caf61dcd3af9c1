// SPDX-License-Identifier: MIT
// Stands between ggml's RPC client and a server on another machine, on this machine's loopback interface. When a server
// goes away, ggml ends the process on a thread of its own, where nothing can be caught. The relay sees it first: it
// answers for the dead server with zeros of the right sizes, so that ggml goes on, and remembers that these answers are
// not real; whoever computes has to check (lost_rpc_servers). Protocol: ggml/src/ggml-rpc/ggml-rpc.cpp of the pinned
// version. Once llama.cpp itself reports a lost server (its pull request 26724), this file goes.
//
// Costs one more copy on this machine. The relay speaks TCP only: transports that RPC peers may agree upon (RDMA) are
// not offered through it. On Windows there is no relay, and a lost server ends the process.
#pragma once

#include <string>
#include <vector>

namespace eaglecpp {

// Starts a relay to "host:port", for the life of the process; returns the endpoint to give to ggml. The server was
// greeted before (eaglecpp/engine/rpc.py). Error(unsupported) where no socket can be had.
std::string start_rpc_relay(const std::string & endpoint);

struct LostServer {
    std::string endpoint;  // of the server
    std::string relay;     // as ggml knows it
    std::string why;
};
// servers that have gone away since their relays were started
std::vector<LostServer> lost_rpc_servers();

}  // namespace eaglecpp
