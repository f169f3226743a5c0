"""How drafts are arranged: growing, planning, searching and widening token trees."""
