// SPDX-License-Identifier: BSD-3-Clause
// The index beside a model that looks at everything, at random.
#include <algorithm>
#include <memory>
#include <random>
#include <set>

#include "test/unit/rcache/index_under_test.h"

namespace pinrail::vma {
namespace {

// The model: a set of spans with rights, every answer by looking at all of them.
struct Model {
  std::vector<pinrail_registration_t*> in;

  bool contains(const Span& span, uint32_t rights, uint32_t traits) const {
    return std::any_of(in.begin(), in.end(), [&](auto* reg) {
      return span_of(reg).contains(span) && (reg->rights & rights) == rights && reg->traits == traits;
    });
  }
  std::set<pinrail_registration_t*> dominated_by(const pinrail_registration_t* by) const {
    std::set<pinrail_registration_t*> out;
    for (auto* reg : in) {
      const bool weaker = (by->rights & reg->rights) == reg->rights && reg->traits == by->traits;
      if (weaker && span_of(by).contains(span_of(reg))) out.insert(reg);
    }
    return out;
  }
  std::set<pinrail_registration_t*> overlapping(const Span& span) const {
    std::set<pinrail_registration_t*> out;
    for (auto* reg : in) {
      if (span_of(reg).overlaps(span)) out.insert(reg);
    }
    return out;
  }
  void erase(const std::set<pinrail_registration_t*>& gone) {
    in.erase(std::remove_if(in.begin(), in.end(), [&](auto* reg) { return gone.count(reg) != 0; }), in.end());
  }
};

class RandomIndexTest : public IndexTest, public ::testing::WithParamInterface<unsigned> {};

TEST_P(RandomIndexTest, agrees_with_the_model_at_every_step) {
  std::mt19937 random(GetParam());
  const bool deep = GetParam() % 2 != 0;  // few overlaps and trees of three levels; else crowded
  // Of one class: then what is alone in its place is inserted without a search for what dominates it.
  const bool one_class = GetParam() % 4 >= 2;
  const uintptr_t pages = deep ? 1 << 16 : one_class ? 256 : 64;
  auto pick = [&](uintptr_t n) { return std::uniform_int_distribution<uintptr_t>(0, n - 1)(random); };
  auto span = [&] {
    const uintptr_t longest = pick(deep ? 4000 : 8) == 0 ? pages / 2 : 6;
    return Span::of((1 + pick(pages)) * kPage, (1 + pick(longest)) * kPage);
  };
  size_t most = 0;
  Index index(false);
  Model model;
  for (int step = 0; step < 10000; ++step) {
    const Span at = span();
    const auto rights = one_class ? 1 : static_cast<uint32_t>(pick(4));
    const uint32_t traits = !one_class && pick(8) == 0 ? PINRAIL_TRAIT_RELAXED_ORDERING : 0;
    const auto remove_one = [&] {
      pinrail_registration_t* reg = model.in[pick(model.in.size())];
      ASSERT_TRUE(index.remove(reg).ok());
      model.erase({reg});
    };
    left_.regs.clear();
    const uintptr_t what = pick(step % 5000 < 4000 ? 72 : 18);  // grows, and shrinks again
    if (what < 12) {
      ASSERT_EQ(look(index, at.base, at.length(), rights, traits) != nullptr, model.contains(at, rights, traits));
    } else if (what == 13) {
      const auto gone = model.overlapping(at);
      index.invalidate_hook(at, Left::visit, &left_);
      ASSERT_EQ(std::set<pinrail_registration_t*>(left_.regs.begin(), left_.regs.end()), gone);
      ASSERT_EQ(left_.regs.size(), gone.size());
      model.erase(gone);
    } else if (what < 17 && !model.in.empty()) {
      remove_one();
    } else {
      ASSERT_EQ(look(index, at.base, at.length(), rights, traits) != nullptr, model.contains(at, rights, traits));
      if (pick(3) == 0 && !model.in.empty()) remove_one();
      pinrail_registration_t* reg = make(at.base, at.length(), rights, traits);
      const bool refused = model.contains(at, rights, traits);
      const auto gone = model.dominated_by(reg);
      ASSERT_EQ(put(index, reg).is(PINRAIL_ERR_BUSY), refused);
      if (refused) continue;
      ASSERT_EQ(std::set<pinrail_registration_t*>(left_.regs.begin(), left_.regs.end()), gone);
      model.erase(gone);
      model.in.push_back(reg);
    }
    ASSERT_EQ(index.count(), model.in.size());
    most = std::max(most, model.in.size());
    if (step % 64 == 0) {
      ASSERT_EQ(index.check(), nullptr) << index.check();
    }
  }
  EXPECT_GT(most, deep ? 1000u : 20u);
  index.invalidate_hook({0, UINTPTR_MAX}, Left::visit, &left_);
  EXPECT_EQ(index.count(), 0u);
  EXPECT_EQ(index.check(), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomIndexTest, ::testing::Range(1u, 13u));

class PersistentIndexTest : public IndexTest, public ::testing::WithParamInterface<bool> {};

// Persistent (and exact) ones may contain each other: the reach of the nodes has to find the right one all the same.
TEST_P(PersistentIndexTest, nested_registrations_are_all_found) {
  const bool exact = GetParam();
  Index index(exact);
  std::mt19937 random(7);
  Model model;
  for (int i = 0; i < 3000; ++i) {
    const uintptr_t base = 0x100000 + (random() % 512) * kPage;
    const size_t length = (1 + random() % (i % 64 == 0 ? 512 : 8)) * kPage;
    pinrail_registration_t* reg = make(base, length, 1, 0, PINRAIL_FLAG_PERSISTENT);
    const bool equal = std::any_of(model.in.begin(), model.in.end(), [&](auto* other) {
      return other->base == reg->base && other->length == reg->length;
    });
    ASSERT_EQ(put(index, reg).is(PINRAIL_ERR_BUSY), equal);
    if (!equal) model.in.push_back(reg);
  }
  ASSERT_EQ(index.check(), nullptr) << index.check();
  for (int i = 0; i < 3000; ++i) {
    const Span span = Span::of(0x100000 + (random() % 600) * kPage, (1 + random() % 64) * kPage);
    const bool expected =
        exact ? std::any_of(model.in.begin(), model.in.end(),
                            [&](auto* reg) { return span_of(reg).base == span.base && span_of(reg).end == span.end; })
              : model.contains(span, 1, 0);
    ASSERT_EQ(look(index, span.base, span.length(), 1) != nullptr, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, PersistentIndexTest, ::testing::Bool());

}  // namespace
}  // namespace pinrail::vma
