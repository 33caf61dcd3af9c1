// SPDX-License-Identifier: MIT
#include "target/rpc_relay.h"

#include "base/error.h"

#ifdef _WIN32

namespace eaglecpp {

std::string start_rpc_relay(const std::string & endpoint) {
    return endpoint;
}

std::vector<LostServer> lost_rpc_servers() {
    return {};
}

}  // namespace eaglecpp

#else

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <thread>

#include "base/log.h"

namespace eaglecpp {

namespace {

constexpr size_t n_chunk = 1 << 20;
// what a server of this version begins its greeting with: ggml connects anew to ask a device for its memory
constexpr uint8_t greeting[] = {7, 0, 0};
// a server that says nothing for so long while the network shows no sign of it is gone
constexpr int idle_s = 10, probe_s = 5, n_probes = 3;

// commands of the protocol that say something back, or whose requests matter here
enum Command : uint8_t {
    alloc_buffer = 0,
    get_alignment = 1,
    get_max_size = 2,
    buffer_get_base = 3,
    set_tensor_hash = 7,
    get_tensor = 8,
    copy_tensor = 9,
    get_device_memory = 11,
    get_alloc_size = 13,
    hello = 14,
    device_count = 15,
};

// bytes of an answer; -1 = none. That to get_tensor is as long as the request's last number says.
int64_t answer_size(uint8_t command) {
    switch (command) {
        case alloc_buffer:
        case get_device_memory:
            return 16;
        case get_alignment:
        case get_max_size:
        case buffer_get_base:
        case get_alloc_size:
            return 8;
        case set_tensor_hash:
        case copy_tensor:
            return 1;
        case hello:
            return 28;
        case device_count:
            return 4;
        default:
            return -1;
    }
}

class Socket {
  public:
    explicit Socket(int fd = -1) : fd_(fd) {
        if (fd_ < 0) return;
        const int on = 1;
        setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
#ifdef SO_NOSIGPIPE
        setsockopt(fd_, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof(on));
#endif
    }
    ~Socket() {
        if (fd_ >= 0) ::close(fd_);
    }
    Socket(const Socket &) = delete;
    Socket & operator=(const Socket &) = delete;

    int fd() const { return fd_; }

    // errno 0: closed by the other side
    bool send(const void * data, size_t n) {
#ifdef MSG_NOSIGNAL
        const int flags = MSG_NOSIGNAL;
#else
        const int flags = 0;
#endif
        const char * p = (const char *)data;
        while (n > 0) {
            const ssize_t sent = ::send(fd_, p, n, flags);
            if (sent < 0 && errno == EINTR) continue;
            if (sent <= 0) return false;
            p += sent, n -= (size_t)sent;
        }
        return true;
    }

    bool receive(void * data, size_t n) {
        char * p = (char *)data;
        while (n > 0) {
            const ssize_t got = ::recv(fd_, p, n, 0);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) {
                if (got == 0) errno = 0;
                return false;
            }
            p += got, n -= (size_t)got;
        }
        return true;
    }

    void keep_alive() {
        const int on = 1;
        setsockopt(fd_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
#ifdef __APPLE__
        const int idle = TCP_KEEPALIVE;
#else
        const int idle = TCP_KEEPIDLE;
#endif
        setsockopt(fd_, IPPROTO_TCP, idle, &idle_s, sizeof(idle_s));
        setsockopt(fd_, IPPROTO_TCP, TCP_KEEPINTVL, &probe_s, sizeof(probe_s));
        setsockopt(fd_, IPPROTO_TCP, TCP_KEEPCNT, &n_probes, sizeof(n_probes));
#ifdef TCP_USER_TIMEOUT
        const unsigned patience_ms = 1000 * (idle_s + n_probes * probe_s);
        setsockopt(fd_, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms, sizeof(patience_ms));
#endif
    }

  private:
    int fd_;
};

using SocketPtr = std::unique_ptr<Socket>;

SocketPtr connect_to(const std::string & endpoint) {
    const size_t colon = endpoint.rfind(':');
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    const std::string host = endpoint.substr(0, colon), port = endpoint.substr(colon + 1);
    if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return nullptr;
    SocketPtr out;
    for (const addrinfo * a = found; a && !out; a = a->ai_next) {
        const int fd = ::socket(a->ai_family, a->ai_socktype, a->ai_protocol);
        if (fd < 0) continue;
        auto s = std::make_unique<Socket>(fd);
        if (::connect(fd, a->ai_addr, a->ai_addrlen) == 0) out = std::move(s);
    }
    freeaddrinfo(found);
    if (out) out->keep_alive();
    return out;
}

// What is known of one server; shared by its relay's threads and never freed, as they are never joined.
class Relay {
  public:
    explicit Relay(std::string endpoint) : endpoint_(std::move(endpoint)) {
        const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t n = sizeof(address);
        listener_ = std::make_unique<Socket>(fd);
        if (fd < 0 || ::bind(fd, (sockaddr *)&address, n) != 0 || ::listen(fd, 4) != 0 ||
            ::getsockname(fd, (sockaddr *)&address, &n) != 0) {
            fail(ErrorKind::unsupported, "RPC server %s: no socket for a relay to it: %s", endpoint_.c_str(),
                 std::strerror(errno));
        }
        local_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
        std::thread([this] { accept(); }).detach();
    }

    const std::string & endpoint() const { return endpoint_; }
    const std::string & local() const { return local_; }

    void lose(const std::string & why) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (!why_.empty()) return;
            why_ = why;
        }
        log_line(LogLevel::error, "RPC server " + endpoint_ + " was lost: " + why);
    }

    std::string why() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return why_;
    }

  private:
    void accept();
    void serve(Socket & client);

    const std::string endpoint_;
    std::string local_;
    SocketPtr listener_;
    std::mutex mutex_;
    std::string why_;  // it was lost; "" = it was not
};

// Passes on what comes over one connection of ggml's, which asks nothing before it has the last answer, until ggml
// closes it.
void Relay::serve(Socket & client) {
    // once lost it stays lost here: a server that runs there again knows nothing of what the other one held, and serves
    // one connection at a time
    SocketPtr server = why().empty() ? connect_to(endpoint_) : nullptr;
    if (!server) lose("it cannot be reached");
    const auto check = [&](bool is_well) {
        if (is_well) return;
        lose(errno == 0 ? "it closed the connection" : std::strerror(errno));
        server.reset();
    };
    const auto forward = [&](const void * data, size_t n) {
        errno = 0;
        if (server) check(server->send(data, n));
    };
    const auto answer = [&](void * data, size_t n) {
        errno = 0;
        if (server) check(server->receive(data, n));
        if (!server) std::memset(data, 0, n);
    };
    std::vector<uint8_t> data(n_chunk);
    uint8_t header[9];
    while (client.receive(header, sizeof(header))) {
        uint64_t n = 0, last = 0;
        std::memcpy(&n, header + 1, sizeof(n));
        forward(header, sizeof(header));
        while (n > 0) {
            const size_t n_part = std::min<uint64_t>(n, n_chunk);
            if (!client.receive(data.data(), n_part)) return;
            // no other transport than this one
            if (header[0] == hello) std::fill_n(data.begin(), n_part, 0);
            if (n_part >= sizeof(last)) std::memcpy(&last, &data[n_part - sizeof(last)], sizeof(last));
            forward(data.data(), n_part);
            n -= n_part;
        }
        const int64_t n_answer = header[0] == get_tensor ? (int64_t)last : answer_size(header[0]);
        if (n_answer < 0) continue;
        n = (uint64_t)n_answer;
        uint64_t size = n;
        answer(&size, sizeof(size));
        if (server && size != n) {
            lose("it answers with other sizes than were asked for");
            server.reset();
        }
        if (!client.send(&n, sizeof(n))) return;
        while (n > 0) {
            const size_t n_part = std::min<uint64_t>(n, n_chunk);
            answer(data.data(), n_part);
            if (!server && header[0] == hello) std::copy(std::begin(greeting), std::end(greeting), data.begin());
            if (!client.send(data.data(), n_part)) return;
            n -= n_part;
        }
    }
}

void Relay::accept() {
    while (true) {
        const int fd = ::accept(listener_->fd(), nullptr, nullptr);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0) return;
        std::thread([this, client = std::make_shared<Socket>(fd)] { serve(*client); }).detach();
    }
}

struct Relays {
    std::mutex mutex;
    std::vector<Relay *> all;
};

Relays & relays() {
    static auto * out = new Relays;  // its threads outlive everything
    return *out;
}

}  // namespace

std::string start_rpc_relay(const std::string & endpoint) {
    auto * relay = new Relay(endpoint);
    const std::lock_guard<std::mutex> lock(relays().mutex);
    relays().all.push_back(relay);
    return relay->local();
}

std::vector<LostServer> lost_rpc_servers() {
    const std::lock_guard<std::mutex> lock(relays().mutex);
    std::vector<LostServer> out;
    for (Relay * relay : relays().all) {
        const std::string why = relay->why();
        if (!why.empty()) out.push_back({relay->endpoint(), relay->local(), why});
    }
    return out;
}

}  // namespace eaglecpp

#endif
