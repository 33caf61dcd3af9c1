// SPDX-License-Identifier: MIT
// Decides whether drafting is on for one conversation, from the mean predicted value of a drafted round, which is far
// less noisy than counts of accepted tokens. While drafting is off, rounds are plain, with a shadow probe now and then:
// a draft that is not verified, made only to see whether it would have been right.
#pragma once

namespace eaglecpp {

class DraftSwitch {
  public:
    bool is_on() const { return is_on_; }

    // mean predicted gain of drafting a round, in tokens
    double advantage() const { return advantage_; }

    // predicted speed of a drafted round, mean over recent ones
    double best_speed() const { return best_speed_; }

    // A request begins with drafting on.
    void begin_request();

    // A drafted round or a probe: its predicted value in tokens, and the speed it would have.
    void weigh(double value, double speed);

    // While drafting is off: counts one more plain round. Is a probe that costs `cost` plain rounds due?
    bool is_probe_due(double cost);
    void begin_probe();

    // A probe turned out right against the odds: the text has changed, so more probes follow in quick succession.
    void surprise();

  private:
    bool is_on_ = true;
    double advantage_ = 0.1, variance_ = 0.03;
    double best_speed_ = 0.0;
    int n_off_ = 0;  // rounds since drafting went off
    int n_since_probe_ = 0;
    int n_burst_ = 0;  // probes left to take in quick succession
};

}  // namespace eaglecpp
